"""A machine's wiring as text: the matrix, islands, NICs, what to expect, the best sets, where ranks go."""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.hardware.topology.bandwidth import all_reduce_bandwidth, pair_bandwidth
from drivetrain.hardware.topology.graph import GpuNode, Topology, write_ranges
from drivetrain.hardware.topology.islands import islands
from drivetrain.hardware.topology.links import Link
from drivetrain.hardware.topology.nic_choice import choose_nics
from drivetrain.hardware.topology.placement import Best
from drivetrain.hardware.topology.rank_layout import RankPlace
from drivetrain.report.wording import plural, rank_ranges
from drivetrain.spec.unknown import Unknown

_MOST_SETS = 8
_MOST_PAIRS = 8
_UNKNOWN = "?"


def topology_lines(topology: Topology) -> list[str]:
    """What is here and how it is joined."""
    if not topology.gpus:
        return ["no NVIDIA GPU found", *_list("unknown", topology.unknown)]
    names = dict.fromkeys(gpu.name for gpu in topology.gpus if isinstance(gpu.name, str))
    kind = f": {', '.join(names)}" if names else ""
    lines = [f"{plural(len(topology.gpus), 'GPU')}{kind} (from {topology.source})", ""]
    lines += _table(_matrix(topology))
    lines += ["", "islands"]
    lines += _table([[f"  {island.kind}", gpu_names(island.gpus)] for island in islands(topology)])
    lines += _expected(topology)
    if topology.refused_peers:
        lines += ["", "no direct access between"]
        lines += [f"  GPU{a} and GPU{b} ({code})" for (a, b), code in topology.refused_peers.items()]
    return lines + _list("unknown", topology.unknown)


def gpu_names(gpus: Sequence[int]) -> str:
    return f"GPU {rank_ranges(list(gpus))}"


def best_lines(topology: Topology, best: Best) -> list[str]:
    """The best sets of one size, why, and for the first of them each rank's GPU, CPUs and NIC."""
    lines = ["", f"best {plural(best.size, 'GPU')}"]
    lines += [f"  {' '.join(str(gpu) for gpu in chosen)}" for chosen in best.sets[:_MOST_SETS]]
    if len(best.sets) > _MOST_SETS:
        lines.append(f"  and {len(best.sets) - _MOST_SETS:,} more, all equally good")
    elif len(best.sets) > 1:
        lines[1] += ", all equally good"
    lines.append(f"  why: {best.reason}")
    if best.doubt and best.doubt != best.reason:
        lines.append(f"  but: {best.doubt}")
    if not best.sets:
        return lines
    if best.size > 1:
        lines.append(f"  all-reduce: {_amount(all_reduce_bandwidth(topology, best.sets[0]))}")
    return lines + rank_lines(topology, best.sets[0])


def rank_lines(topology: Topology, gpus: Sequence[int]) -> list[str]:
    """Rank, GPU, CPUs and NIC, ranks in the order of `gpus`."""
    nics = choose_nics(topology, gpus)
    rows = []
    for rank, index in enumerate(gpus):
        nic = nics[index]
        way = topology.nearest_nics(index)[1]
        shown = f"{nic.name} ({way})" if nic is not None else ("" if not topology.nics else "NIC unknown")
        rows.append([f"  rank {rank}", f"GPU{index}", _cpus(topology.gpu(index)), shown])
    return _table(rows)


def layout_lines(topology: Topology, places: Sequence[RankPlace], layout: str) -> list[str]:
    """Which ranks go where, by node."""
    lines = ["", f"ranks for {layout}"]
    nics = choose_nics(topology, sorted({place.gpu for place in places}))
    is_several = any(place.node for place in places)
    if is_several:
        lines.append("  every machine is taken to be wired as this one")
    used = [axis for axis in places[0].coordinates if any(place.coordinates[axis] for place in places)]
    rows = []
    for place in places:
        nic = nics[place.gpu]
        where = f"node {place.node}, GPU{place.gpu}" if is_several else f"GPU{place.gpu}"
        at = " ".join(f"{axis} {place.coordinates[axis]}" for axis in used)
        cpus = _cpus(topology.gpu(place.gpu))
        rows.append([f"  rank {place.rank}", where, at, cpus, nic.name if nic is not None else ""])
    return lines + _table(rows)


def _matrix(topology: Topology) -> list[list[str]]:
    rows = [["", *(f"GPU{index}" for index in topology.indices), "CPUs", "NUMA", "nearest NICs"]]
    for gpu in topology.gpus:
        nics, way = topology.nearest_nics(gpu.index)
        shown = ", ".join(nic.name for nic in nics) + f" ({way})" if nics else ""
        cells = [
            "-" if other == gpu.index else _cell(topology.link(gpu.index, other))
            for other in topology.indices
        ]
        numa = write_ranges(gpu.numa) if isinstance(gpu.numa, frozenset) else _UNKNOWN
        cpus = write_ranges(gpu.cpus) if isinstance(gpu.cpus, frozenset) else _UNKNOWN
        nearest = shown or (_UNKNOWN if topology.nics else "")
        rows.append([f"GPU{gpu.index}", *cells, cpus, numa, nearest])
    if not topology.nics:
        rows = [row[:-1] for row in rows]
    return rows


def _cell(link: Link | Unknown) -> str:
    return _UNKNOWN if isinstance(link, Unknown) else str(link)


def _cpus(gpu: GpuNode) -> str:
    return f"CPUs {write_ranges(gpu.cpus)}" if isinstance(gpu.cpus, frozenset) else "CPUs unknown"


def _expected(topology: Topology) -> list[str]:
    """Pairs with the same link and the same expectation share a line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for (a, b), link in topology.links.items():
        if isinstance(link, Link):
            key = (str(link), _amount(pair_bandwidth(topology, a, b)))
            groups.setdefault(key, []).append(f"{a}-{b}")
    if not groups:
        return []
    meanings = {str(link): link.meaning for link in topology.links.values() if isinstance(link, Link)}
    rows = []
    for (code, amount), pairs in groups.items():
        which = ", ".join(pairs) if len(pairs) <= _MOST_PAIRS else f"{len(pairs)} pairs"
        rows.append([f"  {code}", which, amount, meanings[code]])
    lines = ["", "expected one way between two GPUs", *_table(rows)]
    whole = all_reduce_bandwidth(topology, topology.indices)
    return [*lines, "", f"expected of an all-reduce over all GPUs (bus bandwidth): {_amount(whole)}"]


def _amount(expected: object) -> str:
    why = getattr(expected, "why", None)
    return f"{expected} ({why})" if why else str(expected)


def _list(head: str, items: Sequence[str]) -> list[str]:
    return ["", head, *(f"  {item}" for item in items)] if items else []


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))] if rows else []
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
