"""Facts as JSON: one object a node, whose keys are the names of `facts.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from drivetrain.doctor.facts import ABSENT, Gpu, NodeFacts, RdmaPort
from drivetrain.hardware.cuda_versions import newest_cuda_of_driver, parse_version, show_version
from drivetrain.spec.unknown import Unknown


def facts_to_json(nodes: Sequence[NodeFacts]) -> dict[str, Any]:
    """`{node: {area: {fact: value}}}`. What could not be read is `{"unknown": reason}`; what nothing that was
    read tells is left out. `summary` counts and derives, for readers who want one number."""
    return {facts.node: {"summary": _summary(facts), **_plain(facts)} for facts in nodes}


def _plain(value: Any) -> Any:
    if isinstance(value, Unknown):
        return value.to_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((item.name, getattr(value, item.name)) for item in dataclasses.fields(value))
        shown = {name: _plain(item) for name, item in pairs if item != ABSENT}
        return {name: item for name, item in shown.items() if item != {}}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _summary(facts: NodeFacts) -> dict[str, Any]:
    summary: dict[str, Any] = {"read": list(facts.read)}
    if isinstance(facts.gpus, tuple):
        summary["num_gpus"] = len(facts.gpus)
        summary["gpu_names"] = sorted({gpu.name for gpu in facts.gpus if isinstance(gpu.name, str)})
        summary["utilization_percent"] = [_or_none(gpu, "utilization_percent") for gpu in facts.gpus]
    if isinstance(facts.driver.version, str):
        summary["driver"] = facts.driver.version
        version = parse_version(facts.driver.version)
        newest = newest_cuda_of_driver(version) if version else None
        summary["max_cuda"] = show_version(newest) if newest else None
    for name, value in (
        ("torch", facts.torch.version),
        ("torch_cuda", facts.torch.cuda),
        ("nvcc", facts.libraries.nvcc),
        ("os", facts.system.name),
        ("machine", facts.system.machine),
    ):
        if value != ABSENT:
            summary[name] = None if isinstance(value, Unknown) else value
    if isinstance(facts.rdma, tuple):
        summary["num_rdma_ports"] = len(facts.rdma)
        summary["num_rdma_ports_active"] = sum(port.state == "active" for port in facts.rdma)
        summary["rdma_rate_gbps"] = [_or_none(port, "rate_gbps") for port in facts.rdma]
    return summary


def _or_none(thing: Gpu | RdmaPort, name: str) -> Any:
    value = getattr(thing, name)
    return None if isinstance(value, Unknown) else value
