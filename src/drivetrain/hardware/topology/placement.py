"""The best N GPUs of a machine: slowest link, then the sum of links, then one NUMA node, then NICs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from drivetrain.hardware.topology.graph import Topology, numa_groups
from drivetrain.hardware.topology.links import Link
from drivetrain.hardware.topology.nic_choice import seat_nics
from drivetrain.spec.unknown import Unknown

MAX_SETS = 200_000
"""Sets that are compared, about 2 s of work; 16 GPUs have at most 12,870 of one size."""

# An unknown link counts as worse than any known one: a set is praised only for what is certain.
_UNKNOWN_ORDER = 0


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best sets of one size.

    Attributes:
        sets: all that are equally good, each in order; empty where there were too many sets to compare.
        reason: why these, in one line.
        doubt: what stands against them: links that could not be read. Empty where nothing does.
    """

    size: int
    sets: tuple[tuple[int, ...], ...]
    reason: str
    doubt: str = ""


def best_sets(topology: Topology, size: int, among: Iterable[int] | None = None) -> Best | None:
    """The best `size` GPUs of the machine, or of `among` (those that are free); None of fewer."""
    gpus = sorted(topology.indices if among is None else among)
    if not 1 <= size <= len(gpus):
        return None
    num_sets = math.comb(len(gpus), size)
    if num_sets > MAX_SETS:
        why = f"{num_sets} sets of {size} are too many to compare"
        return Best(size=size, sets=(), reason=why, doubt=why)
    ranking = _Ranking(topology)
    sets = list(itertools.combinations(gpus, size))
    by_links = _top(sets, [ranking.links(chosen) for chosen in sets])
    by_place = _top(by_links, [ranking.place(chosen) for chosen in by_links])
    best = _top(by_place, [ranking.nics(chosen) for chosen in by_place])
    num_unsure = sum(ranking.is_unsure(chosen) for chosen in sets) if ranking.has_unknown_links else 0
    return Best(
        size=size,
        sets=tuple(best),
        reason=_reason(ranking, best, _Left(len(sets), num_unsure, len(by_links), len(by_place))),
        doubt=_doubt(ranking, best, num_sets, num_unsure),
    )


def _top(sets: Sequence[tuple[int, ...]], scores: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The sets with the highest score."""
    highest = max(scores)
    return [chosen for chosen, score in zip(sets, scores, strict=True) if score == highest]


class _Left(NamedTuple):
    """How many sets there were, how many of them with unknown links, and how many each rule left."""

    before: int
    unsure: int
    by_links: int
    by_place: int


class _Ranking:
    """Scores of sets, higher is better; links and places are looked up once."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._numa = numa_groups(topology)
        self._links: dict[tuple[int, int], Link | Unknown] = dict(topology.links)
        self._scores = {
            pair: (link.order, link.weight) if isinstance(link, Link) else (_UNKNOWN_ORDER, 0)
            for pair, link in topology.links.items()
        }
        self._nearest = {gpu: topology.nearest_nics(gpu) for gpu in topology.indices}

    def links(self, chosen: tuple[int, ...]) -> tuple[int, int]:
        """Order of the slowest link, and the sum of all."""
        pairs = [self._scores[pair] for pair in itertools.combinations(chosen, 2)]
        return min((order for order, _ in pairs), default=0), sum(weight for _, weight in pairs)

    @property
    def has_unknown_links(self) -> bool:
        return any(isinstance(link, Unknown) for link in self._links.values())

    def is_unsure(self, chosen: tuple[int, ...]) -> bool:
        return any(isinstance(self._links[pair], Unknown) for pair in itertools.combinations(chosen, 2))

    def place(self, chosen: tuple[int, ...]) -> tuple[int]:
        """Fewest NUMA nodes; a GPU whose node is unknown counts as one more, unless none is known."""
        if not self._numa:
            return (0,)
        return (-len({self._numa.get(gpu, str(gpu)) for gpu in chosen}),)

    def nics(self, chosen: tuple[int, ...]) -> tuple[int, int, int]:
        """Order of the worst way to a NIC, the sum, and how many GPUs can have a nearest NIC of their own."""
        if not self._topology.nics:
            return 0, 0, 0
        ways = [self._nearest[gpu][1] for gpu in chosen]
        orders = [link.order if isinstance(link, Link) else _UNKNOWN_ORDER for link in ways]
        nics = seat_nics({gpu: self._nearest[gpu][0] for gpu in chosen}).values()
        return min(orders), sum(orders), len({nic for nic in nics if nic is not None})

    def slowest(self, chosen: tuple[int, ...]) -> Link | Unknown | None:
        links = [self._links[pair] for pair in itertools.combinations(chosen, 2)]
        return _worst(links)

    def numa_names(self, chosen: tuple[int, ...]) -> set[str | None]:
        return {self._numa.get(gpu) for gpu in chosen}

    def worst_nic(self, chosen: tuple[int, ...]) -> Link | Unknown | None:
        return _worst([self._nearest[gpu][1] for gpu in chosen])


def _doubt(ranking: _Ranking, best: Sequence[tuple[int, ...]], num_sets: int, num_unsure: int) -> str:
    """What could make another set as good, or these worse."""
    if num_unsure and any(ranking.is_unsure(chosen) for chosen in best):
        if len(best) == num_sets > 1:
            return "no set can be preferred: the links that tell them apart could not be read"
        return "not all links of these sets could be read; they are the best by what is known"
    if num_unsure:
        return f"{num_unsure} of {num_sets} sets hold links that could not be read, and were put last"
    return ""


def _worst(links: Sequence[Link | Unknown]) -> Link | Unknown | None:
    """An unknown one where there is any, else the lowest; None of none."""
    unknown = next((link for link in links if isinstance(link, Unknown)), None)
    if unknown is not None:
        return unknown
    return min((link for link in links if isinstance(link, Link)), key=lambda link: link.order, default=None)


def _reason(ranking: _Ranking, best: Sequence[tuple[int, ...]], left: _Left) -> str:
    """Which rules decided, and how many sets each of them put behind."""
    slowest = ranking.slowest(best[0])
    parts = []
    if isinstance(slowest, Link):
        num_slower = left.before - left.by_links - left.unsure
        behind = f" ({num_slower} of {left.before} sets have slower or fewer links)" if num_slower else ""
        parts.append(f"slowest link {slowest}{behind}")
    elif isinstance(slowest, Unknown):
        parts.append("some links unknown")
    parts.append(_place_words(ranking.numa_names(best[0]), is_single=len(best) == 1))
    if left.by_place < left.by_links:
        parts[-1] += f" ({left.by_links - left.by_place} with as good links span more)"
    nic = ranking.worst_nic(best[0])
    if isinstance(nic, Link):
        num_behind = left.by_place - len(best)
        behind = f" ({num_behind} have them farther, or share them)" if num_behind else ""
        parts.append(f"a NIC at {nic} or nearer for each{behind}")
    return ", ".join(parts)


def _place_words(names: set[str | None], *, is_single: bool) -> str:
    if names == {None}:
        return "NUMA node unknown"
    if None in names:
        return f"over {len(names)} places, not all known"
    if len(names) > 1:
        return f"over {len(names)} NUMA nodes"
    name = next(iter(names)) or ""
    if name.startswith("NUMA nodes"):  # a virtual machine that gives each GPU every node
        return f"{name} for all"
    kind = "list of CPUs" if name.startswith("CPUs") else "NUMA node"
    return f"all on {name}" if is_single else f"all on one {kind}"
