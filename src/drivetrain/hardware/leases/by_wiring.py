"""Which of the free GPUs to lease: the best-linked set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drivetrain.hardware.leases.pool import LeasableGpu
from drivetrain.hardware.leases.take import Choose, lowest_indices
from drivetrain.hardware.topology.placement import best_sets
from drivetrain.hardware.topology.read import read_machine


def choose_by_wiring(nvml: Any = None) -> Choose:
    """The choice by how this machine is wired; the lowest indices where that cannot be told.

    Args:
        nvml: the module to ask, for tests; None imports nvidia-ml-py.
    """

    def choose(free: Sequence[LeasableGpu], n: int) -> Sequence[LeasableGpu]:
        if n == len(free) or n == 1:
            return lowest_indices(free, n)
        by_uuid = {gpu.uuid: gpu for gpu in free}
        topology = read_machine(nvml=nvml)
        uuids = {gpu.index: gpu.uuid for gpu in topology.gpus if isinstance(gpu.uuid, str)}
        among = [index for index, uuid in uuids.items() if uuid in by_uuid]
        best = best_sets(topology, n, among) if len(among) == len(free) else None
        if best is None or not best.sets:
            return lowest_indices(free, n)
        return [by_uuid[uuids[index]] for index in best.sets[0]]

    return choose
