"""Islands: GPUs that are better joined with each other than with the rest, by NVLink, PCIe switch or NUMA."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from drivetrain.hardware.topology.graph import Topology, numa_groups
from drivetrain.hardware.topology.links import PCIE_SWITCH, SAME_NUMA, Link


@dataclass(frozen=True, kw_only=True)
class Island:
    """`kind`: "NVLink", "PCIe switch", "NUMA node", or "alone" for a GPU that shares none of these."""

    gpus: tuple[int, ...]
    kind: str


def islands(topology: Topology) -> tuple[Island, ...]:
    """Parts the GPUs: those joined by NVLink, of the rest those behind common PCIe switches, of the rest
    those of a NUMA node. Every GPU is in exactly one island.

    A link that is not known joins nothing, so an island may be larger in truth; the topology's `unknown`
    says which links those are.
    """
    numa = numa_groups(topology)

    def is_near(a: int, b: int) -> bool:
        return _is_kind(topology, a, b, SAME_NUMA) or (a in numa and numa.get(a) == numa.get(b))

    levels: list[tuple[str, Callable[[int, int], bool]]] = [
        ("NVLink", lambda a, b: _is_nvlink(topology, a, b)),
        ("PCIe switch", lambda a, b: _is_kind(topology, a, b, PCIE_SWITCH)),
        ("NUMA node", is_near),
    ]
    rest = list(topology.indices)
    found = []
    for kind, joins in levels:
        groups = [group for group in _components(rest, joins) if len(group) > 1]
        found += [Island(gpus=tuple(group), kind=kind) for group in groups]
        rest = [gpu for gpu in rest if not any(gpu in group for group in groups)]
    found += [Island(gpus=(gpu,), kind="alone") for gpu in rest]
    return tuple(sorted(found, key=lambda island: island.gpus))


def _is_nvlink(topology: Topology, a: int, b: int) -> bool:
    link = topology.link(a, b)
    return isinstance(link, Link) and link.num_nvlinks > 0


def _is_kind(topology: Topology, a: int, b: int, kinds: frozenset[str]) -> bool:
    link = topology.link(a, b)
    return isinstance(link, Link) and link.kind in kinds


def _components(gpus: Iterable[int], joins: Callable[[int, int], bool]) -> list[list[int]]:
    """Sets of GPUs that hang together by `joins`, each in order."""
    left = sorted(gpus)
    groups = []
    while left:
        group = [left.pop(0)]
        for member in group:  # grows while it is walked
            group += [gpu for gpu in left if joins(member, gpu)]
            left = [gpu for gpu in left if gpu not in group]
        groups.append(sorted(group))
    return groups
