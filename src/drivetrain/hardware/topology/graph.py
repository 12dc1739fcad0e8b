"""The machine as a graph: GPUs and NICs, the link of each pair, and what could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drivetrain.hardware.topology.links import SAME_NUMA, Link, PcieSlot
from drivetrain.spec.unknown import Unknown

Pair = tuple[int, int]

_NOT_SAID = Unknown("the source does not say")


@dataclass(frozen=True, kw_only=True)
class GpuNode:
    """One GPU.

    Attributes:
        index: as nvidia-smi numbers it on this machine, or in this job.
        cpus: the CPUs next to it; numa: their NUMA nodes (several where the firmware or a virtual machine
            gives several, so one is a fact and several are not).
        memory_numa: the NUMA node that the GPU's own memory is (Grace); None where it is none.
        slot: what its PCIe link can do.
    """

    index: int
    uuid: str | Unknown = _NOT_SAID
    name: str | Unknown = _NOT_SAID
    bus_id: str | Unknown = _NOT_SAID
    cpus: frozenset[int] | Unknown = _NOT_SAID
    numa: frozenset[int] | Unknown = _NOT_SAID
    memory_numa: int | None = None
    slot: PcieSlot | Unknown = _NOT_SAID


@dataclass(frozen=True, kw_only=True)
class Nic:
    """`label` is the matrix's (`NIC0`); `name` the device's (`mlx5_0`), or the label where no legend says."""

    label: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Topology:
    """How one machine is wired.

    Attributes:
        gpus: by index.
        links: of each pair (a, b) with a < b; Unknown where it could not be read.
        nic_links: of each (GPU index, NIC label).
        refused_peers: pairs for which a peer table says that direct access is not possible, and its code.
        source: where this was read.
        unknown: what could not be read, a sentence each; empty where all was.
    """

    gpus: tuple[GpuNode, ...]
    links: Mapping[Pair, Link | Unknown]
    nics: tuple[Nic, ...] = ()
    nic_links: Mapping[tuple[int, str], Link | Unknown] = field(default_factory=dict)
    refused_peers: Mapping[Pair, str] = field(default_factory=dict)
    source: str
    unknown: tuple[str, ...] = ()

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(gpu.index for gpu in self.gpus)

    def gpu(self, index: int) -> GpuNode:
        return next(gpu for gpu in self.gpus if gpu.index == index)

    def link(self, a: int, b: int) -> Link | Unknown:
        return self.links[(a, b) if a < b else (b, a)]

    def nearest_nics(self, index: int) -> tuple[tuple[Nic, ...], Link | Unknown]:
        """The NICs with the best link to a GPU, and that link; no NICs and Unknown where that is not known.

        A NIC whose link is unknown could be the nearest, so the rest is only told where none can be nearer
        than it: behind the same PCIe switch.
        """
        links = [(nic, self.nic_links[(index, nic.label)]) for nic in self.nics]
        known = [(nic, link) for nic, link in links if isinstance(link, Link)]
        if not links:
            return (), Unknown("no NIC is shown")
        best = max((link for _, link in known), key=lambda link: link.order, default=None)
        if best is None or (len(known) < len(links) and best.kind != "PIX"):
            return (), Unknown(f"not every link between GPU{index} and the NICs could be read")
        return tuple(nic for nic, link in known if link == best), best


def numa_groups(topology: Topology) -> dict[int, str]:
    """Which GPUs sit together by affinity: index → a name of the place, missing where it is unknown.

    The NUMA column where there is one, else the list of CPUs. GPUs whose columns differ are told apart even
    where every link is SYS.
    """
    by_cpus = {
        gpu.cpus: gpu.numa
        for gpu in topology.gpus
        if isinstance(gpu.cpus, frozenset) and isinstance(gpu.numa, frozenset)
    }
    groups = {}
    for gpu in topology.gpus:
        numa = gpu.numa
        if isinstance(numa, Unknown) and isinstance(gpu.cpus, frozenset):
            numa = by_cpus.get(gpu.cpus, numa)
        if isinstance(numa, frozenset):
            groups[gpu.index] = (
                "NUMA node " + write_ranges(numa) if len(numa) == 1 else ("NUMA nodes " + write_ranges(numa))
            )
        elif isinstance(gpu.cpus, frozenset):
            groups[gpu.index] = "CPUs " + write_ranges(gpu.cpus)
    for (a, b), link in topology.links.items():  # a link within a node puts both ends there
        if isinstance(link, Link) and link.kind in SAME_NUMA and (a in groups) != (b in groups):
            groups[a] = groups[b] = groups.get(a) or groups[b]
    return groups


def read_ranges(text: str) -> frozenset[int] | None:
    """`0-19,40-59` as numbers; None for what is no such list (a range that runs backwards, say)."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            return None
        low, high = int(first), int(last or first)
        if low > high or (numbers and low <= max(numbers)):
            return None
        numbers.update(range(low, high + 1))
    return frozenset(numbers)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5


def write_ranges(numbers: frozenset[int]) -> str:
    """The inverse of `read_ranges`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
