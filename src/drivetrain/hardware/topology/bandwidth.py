"""What to expect of each pair of GPUs and of an all-reduce over a set, in bytes a second one way.

Assumptions, all of them simple: nothing else uses the links; a pair can use every NVLink that the matrix
counts for it; PCIe peers do not share a slot's lanes with others; an all-reduce goes round one ring, in the
best order there is, at the rate of its slowest link (NCCL's bus bandwidth: bytes * 2 (n-1)/n / time). Where
GPUs are joined directly in several ways, NCCL runs several rings and can do better; an NVSwitch that reduces
(NVLS) can, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drivetrain.hardware.topology.graph import Topology
from drivetrain.hardware.topology.links import (
    ASSUMED_SLOTS,
    CPU_PEER_OVERHEAD,
    GB,
    NVLINK_GENERATIONS,
    PCIE_USEFUL_SHARE,
    SOCKET_GB_PER_S,
    Link,
    NvlinkGeneration,
    PcieSlot,
    nvlink_generation,
)
from drivetrain.spec.unknown import Unknown


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A range, as generations may be unknown and sockets differ. `why`: what it rests on, in a clause."""

    low_bytes_per_s: float
    high_bytes_per_s: float
    why: str

    def __str__(self) -> str:
        low, high = self.low_bytes_per_s / GB, self.high_bytes_per_s / GB
        return f"{low:.0f} GB/s" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f} GB/s"


def pair_bandwidth(topology: Topology, a: int, b: int) -> Expected | Unknown:
    """One way between two GPUs; Unknown where their link is."""
    link = topology.link(a, b)
    if isinstance(link, Unknown):
        return link
    if link.num_nvlinks:
        return _over_nvlink(topology, link, (a, b))
    if link.kind == "C2C":
        return Unknown("the table has no rate for C2C between GPUs")
    return _over_pcie(topology, link, (a, b))


def _over_nvlink(topology: Topology, link: Link, pair: tuple[int, int]) -> Expected | Unknown:
    named = [_generation(topology, index) for index in pair]
    known = [generation for generation in named if generation is not None]
    fitting = known or [g for g in NVLINK_GENERATIONS if link.num_nvlinks <= g.max_links]
    rates = [link.num_nvlinks * generation.useful_gb_per_s * GB for generation in fitting]
    if known:
        slowest = min(known, key=lambda generation: generation.useful_gb_per_s)
        why = f"{link.num_nvlinks} x {slowest.useful_gb_per_s:g} GB/s, {slowest.name}"
        return Expected(low_bytes_per_s=min(rates), high_bytes_per_s=min(rates), why=why)
    names = f"{fitting[0].name} to {fitting[-1].name}" if len(fitting) > 1 else fitting[0].name
    return Expected(
        low_bytes_per_s=min(rates),
        high_bytes_per_s=max(rates),
        why=f"{link.meaning} of {names}: the GPU's model is not known",
    )


def _generation(topology: Topology, index: int) -> NvlinkGeneration | None:
    name = topology.gpu(index).name
    return nvlink_generation(name) if isinstance(name, str) else None


def _over_pcie(topology: Topology, link: Link, pair: tuple[int, int]) -> Expected | Unknown:
    slots = [topology.gpu(index).slot for index in pair]
    known = [slot for slot in slots if isinstance(slot, PcieSlot) and slot.wire_gb_per_s is not None]
    rates = [
        (slot.wire_gb_per_s or 0) * PCIE_USEFUL_SHARE
        for slot in (known if len(known) == 2 else ASSUMED_SLOTS)
    ]
    low, high = (min(rates), min(rates)) if len(known) == 2 else (min(rates), max(rates))
    why = (
        f"{min(known, key=lambda slot: slot.wire_gb_per_s or 0)}"
        if len(known) == 2
        else (f"slots not known, {ASSUMED_SLOTS[0]} to {ASSUMED_SLOTS[1]} assumed")
    )
    if link.kind in ("PHB", "NODE", "SYS"):
        low, high = low / CPU_PEER_OVERHEAD, high / CPU_PEER_OVERHEAD
        why += ", through the CPU"
    if link.kind == "SYS":
        low, high = min(low, SOCKET_GB_PER_S[0]), min(high, SOCKET_GB_PER_S[1])
        why += " and between sockets"
    refused = topology.refused_peers.get((min(pair), max(pair)))
    if refused is not None:
        return Unknown(f"no direct access ({refused}): through host memory, at less than {high:.0f} GB/s")
    return Expected(low_bytes_per_s=low * GB, high_bytes_per_s=high * GB, why=why)


def all_reduce_bandwidth(topology: Topology, gpus: Sequence[int]) -> Expected | Unknown:
    """Bus bandwidth of an all-reduce over `gpus`: the slowest hop of the best ring. See the module's text."""
    if len(gpus) < 2:
        return Unknown("one GPU reduces with nobody")
    ring = best_ring(topology, gpus)
    if isinstance(ring, Unknown):
        return ring
    hops = [pair_bandwidth(topology, a, b) for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)]
    known = [hop for hop in hops if isinstance(hop, Expected)]
    if len(known) < len(hops):
        return next(hop for hop in hops if isinstance(hop, Unknown))
    slowest = min(known, key=lambda hop: (hop.low_bytes_per_s, hop.high_bytes_per_s))
    return Expected(
        low_bytes_per_s=slowest.low_bytes_per_s,
        high_bytes_per_s=min(hop.high_bytes_per_s for hop in known),
        why=f"one ring, slowest hop {slowest.why}",
    )


def best_ring(topology: Topology, gpus: Sequence[int]) -> tuple[int, ...] | Unknown:
    """The order of `gpus` round which the slowest link is as good as it can be.

    Tries the links' orders from the best down, each by a search that remembers which (visited, last) fail, so
    16 GPUs take well under a second.
    """
    links = {(a, b): topology.link(a, b) for a in gpus for b in gpus if a != b}
    if any(isinstance(link, Unknown) for link in links.values()):
        return Unknown("not every link of the set could be read")
    orders = {pair: link.order for pair, link in links.items() if isinstance(link, Link)}
    for least in sorted(set(orders.values()), reverse=True):
        near = [[j for j, b in enumerate(gpus) if a != b and orders[(a, b)] >= least] for a in gpus]
        ring = _ring(near)
        if ring is not None:
            return tuple(gpus[place] for place in ring)
    raise AssertionError("all GPUs are linked, so some ring exists")


def _ring(near: list[list[int]]) -> list[int] | None:
    """A closed walk through all places, each once, along `near`; None where there is none."""
    everyone = (1 << len(near)) - 1
    dead: set[tuple[int, int]] = set()

    def walk(visited: int, path: list[int]) -> list[int] | None:
        last = path[-1]
        if visited == everyone:
            return path if 0 in near[last] else None
        if (visited, last) in dead:
            return None
        for following in near[last]:
            if not visited >> following & 1:
                found = walk(visited | 1 << following, [*path, following])
                if found is not None:
                    return found
        dead.add((visited, last))
        return None

    return walk(1, [0])
