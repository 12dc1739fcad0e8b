"""What changed since a run: the versions and devices that it recorded, against those of this node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from drivetrain._version import __version__
from drivetrain.doctor.facts import NodeFacts
from drivetrain.doctor.finding import Finding, Status
from drivetrain.spec.errors import InputError
from drivetrain.spec.run_dir import RunDir
from drivetrain.spec.unknown import Unknown
from drivetrain.telemetry.events import Header, RunStarted
from drivetrain.telemetry.reader import read_events

AREA = "Since that run"
_CONFIG_VERSIONS = re.compile(
    r"^# drivetrain (?P<drivetrain>\S+), torch (?P<torch>\S+), Python (?P<python>\S+)", re.M
)
_DEVICE = re.compile(r"^cuda:\d+ (?P<name>.+)$")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What a run kept: versions by name, GPU names of all ranks, hosts."""

    versions: Mapping[str, str]
    devices: tuple[str, ...]
    hosts: tuple[str, ...]


def read_run(path: Path) -> RunRecord:
    """The record of the run's last start.

    Raises:
        InputError: it is no run directory, or nothing of it can be read.
    """
    run = RunDir(path)
    versions: dict[str, str] = {}
    devices: tuple[str, ...] = ()
    hosts: list[str] = []
    try:
        match = _CONFIG_VERSIONS.search(run.config.read_text(encoding="utf-8", errors="replace"))
        versions |= match.groupdict() if match else {}
    except OSError:
        pass  # a run that ended in its set-up has no config yet; its events may tell
    for file in sorted(run.events.glob("rank-*.jsonl")):
        try:
            for event in read_events(file, kinds=(Header, RunStarted)):
                if isinstance(event, Header):
                    hosts.append(event.host)
                elif isinstance(event, RunStarted):
                    devices = event.devices
                    versions |= event.versions
        except OSError:
            continue
    if not versions and not devices:
        raise InputError(
            f"doctor --against {path}",
            "no record of a run's versions there",
            "name a run directory, as drivetrain train printed it: runs/NAME-DATE",
        )
    return RunRecord(versions=versions, devices=devices, hosts=tuple(dict.fromkeys(hosts)))


def compare(record: RunRecord, facts: NodeFacts) -> tuple[Finding, ...]:
    """One finding for each thing that either side knows; a change is a warning, not a fault."""
    now: dict[str, str | Unknown] = {
        "drivetrain": __version__,
        "torch": facts.torch.version,
        "python": facts.python.version,
        "cuda": facts.torch.cuda,
        "nccl": facts.torch.nccl,
        "cudnn": facts.torch.cudnn,
        "numpy": facts.python.numpy,
        "driver": facts.driver.kernel_module,
    }
    findings = [_versions(name, record.versions.get(name), value, facts.node) for name, value in now.items()]
    findings.append(_devices(record, facts))
    return tuple(findings)


def _versions(name: str, before: str | None, now: str | Unknown, node: str) -> Finding:
    if before is None:
        return _finding(name, Status.NOT_CHECKED, "the run did not record it", "", "", node)
    if isinstance(now, Unknown):
        if before == "":
            return _finding(name, Status.PASS, "none then, none now", "", "", node)
        return _finding(name, Status.NOT_CHECKED, f"{before} then; now: {now.reason}", "", "", node)
    # Metadata says "2.14.1" where torch itself says "2.14.1+cu130".
    same = before == now or (before.split("+")[0] == now and "+" in before) or now.split("+")[0] == before
    if same:
        return _finding(name, Status.PASS, f"{now or 'none'}, as then", "", "", node)
    return _finding(
        name,
        Status.WARN,
        f"{now or 'none'} now, {before or 'none'} in that run",
        f"{name} {before}, for the same numbers and speed",
        f"pip install {name}=={before}"
        if name in ("torch", "numpy", "drivetrain")
        else f"put {name} {before} back",
        node,
    )


def _devices(record: RunRecord, facts: NodeFacts) -> Finding:
    names = [match["name"] for device in record.devices if (match := _DEVICE.match(device))]
    if not record.devices:
        return _finding("gpus", Status.NOT_CHECKED, "the run did not record its devices", "", "", facts.node)
    if isinstance(facts.gpus, Unknown):
        told = f"{len(names)} GPUs then; now: {facts.gpus.reason}"
        return _finding("gpus", Status.NOT_CHECKED, told, "", "", facts.node)
    here = {str(gpu.name) for gpu in facts.gpus}
    if set(names) == here and (len(record.hosts) > 1 or len(facts.gpus) >= len(names)):
        told = f"{', '.join(sorted(here)) or 'no GPU'}, as then"
        return _finding("gpus", Status.PASS, told, "", "", facts.node)
    before = f"{len(names)} × {', '.join(sorted(set(names)))}" if names else "the CPU"
    now = f"{len(facts.gpus)} × {', '.join(sorted(here))}" if here else "no GPU"
    return _finding(
        "gpus",
        Status.WARN,
        f"{now} here; that run used {before}",
        before,
        "see the checks of driver and GPUs",
        facts.node,
    )


def _finding(name: str, status: Status, found: str, expected: str, fix: str, node: str) -> Finding:
    return Finding(
        id=f"since_{name}", area=AREA, status=status, found=found, expected=expected, fix=fix, node=node
    )
