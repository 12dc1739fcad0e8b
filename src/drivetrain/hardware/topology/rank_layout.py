"""Which rank goes on which GPU: groups that talk most get the best-linked GPUs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drivetrain.hardware.topology.graph import Topology, numa_groups
from drivetrain.hardware.topology.links import Link
from drivetrain.hardware.topology.placement import best_sets
from drivetrain.spec.errors import InputError
from drivetrain.spec.layout import AXES, REST, Layout

_MAX_STEPS = 200_000
"""Partial groupings that are looked at (about a second); beyond, the best so far stands."""

Score = tuple[int, int, int]
"""Of a link or a grouping of blocks: order of the slowest, sum of weights, pairs on one NUMA node."""

Block = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """`node`: which machine, all taken to be wired as this one; `coordinates`: by axis of the mesh."""

    rank: int
    node: int
    gpu: int
    coordinates: Mapping[str, int]


def parse_layout(text: str, num_gpus: int) -> Layout:
    """`tp=2,dp_replicate=2` as degrees; one of them may be -1, the rest of the machine's GPUs.

    Raises:
        InputError: an unknown axis, one twice, no number, or degrees that do not fit.
    """
    degrees: dict[str, Any] = {}
    for part in text.split(","):
        axis, _, number = (piece.strip() for piece in part.partition("="))
        axis = axis.replace("-", "_")
        if axis not in AXES:
            raise InputError(
                f"--layout {text}", f"there is no axis {axis!r}", f"the axes are {', '.join(AXES)}"
            )
        if axis in degrees:
            raise InputError(f"--layout {text}", f"{axis} stands there twice", "name each axis once")
        if not number.lstrip("-").isdecimal() or (int(number) < 1 and int(number) != REST):
            raise InputError(f"--layout {text}", f"{axis} is {number!r}", f"a number from 1 up: {axis}=2")
        degrees[axis] = int(number)
    open_axes = [axis for axis, degree in degrees.items() if degree == REST]
    taken = math.prod(degree for degree in degrees.values() if degree != REST)
    if len(open_axes) > 1 or (open_axes and num_gpus % taken):
        raise InputError(
            f"--layout {text}",
            f"{taken} of {num_gpus} GPUs leave no whole rest",
            "give every degree a number",
        )
    degrees |= dict.fromkeys(open_axes, num_gpus // taken)
    return Layout(strategy="any", **degrees)


def place_ranks(topology: Topology, layout: Layout) -> list[RankPlace]:
    """Every rank of the layout on a GPU of this machine, or of several that are wired like it.

    Tensor groups get the best-linked GPUs, of what is left open then the shard groups, and so on outwards
    (ranks of a group are neighbours, see `spec.layout.AXES`). With fewer ranks than GPUs, the best set of
    that many is taken.

    Raises:
        InputError: more ranks than GPUs, and no whole number of such machines that the axes can be cut at.
    """
    num_gpus = len(topology.gpus)
    world = layout.world_size
    per_node = min(world, num_gpus)
    local = _local_degrees(layout, per_node)
    if num_gpus == 0 or world % per_node or math.prod(local) != per_node:
        raise InputError(
            f"--layout {layout.describe()} on {num_gpus} GPUs",
            f"{world} ranks do not fill whole machines of {num_gpus} with whole groups",
            "choose degrees whose product is a part or a multiple of the machine's GPUs",
        )
    best = best_sets(topology, per_node)
    chosen = best.sets[0] if best is not None and best.sets else topology.indices[:per_node]
    order = order_gpus(topology, chosen, local)
    return [
        RankPlace(
            rank=rank, node=rank // per_node, gpu=order[rank % per_node], coordinates=layout.place(rank)
        )
        for rank in range(world)
    ]


def _local_degrees(layout: Layout, per_node: int) -> list[int]:
    """How much of each axis, innermost first, lies within a machine."""
    left, degrees = per_node, []
    for degree in reversed(layout.degrees):
        degrees.append(math.gcd(degree, left))
        left //= degrees[-1]
    return degrees


def order_gpus(topology: Topology, chosen: Sequence[int], degrees: Sequence[int]) -> tuple[int, ...]:
    """`chosen` by local rank: groups of `degrees[0]` neighbours, groups of `degrees[1]` of these, and so on.

    Each level's groups are formed so that their slowest link is as good as it can be, then the sum, then so
    that they share NUMA nodes. Between blocks of more than one GPU the slowest of their links counts.
    """
    numa = numa_groups(topology)
    blocks: list[Block] = [(gpu,) for gpu in sorted(chosen)]
    for degree in degrees:
        if degree > 1:
            groups = _group(blocks, degree, lambda a, b: _between(topology, numa, a, b))
            blocks = sorted(tuple(itertools.chain(*group)) for group in groups)
    return tuple(itertools.chain(*blocks))


def keep_or_order(topology: Topology, chosen: Sequence[int], degrees: Sequence[int]) -> tuple[int, ...]:
    """`chosen` as it stands if its groups of neighbours are as good as any; else as `order_gpus` says."""
    ordered = order_gpus(topology, chosen, degrees)
    if _order_scores(topology, chosen, degrees) >= _order_scores(topology, ordered, degrees):
        return tuple(chosen)
    return ordered


def _order_scores(topology: Topology, order: Sequence[int], degrees: Sequence[int]) -> list[Score]:
    """What each level's groups of an order score, innermost first."""
    numa = numa_groups(topology)
    blocks: list[Block] = [(gpu,) for gpu in order]
    scores = []
    for degree in degrees:
        groups = [blocks[at : at + degree] for at in range(0, len(blocks), degree)]
        pairs = [
            _between(topology, numa, a, b) for group in groups for a, b in itertools.combinations(group, 2)
        ]
        scores.append(
            (min((p[0] for p in pairs), default=0), sum(p[1] for p in pairs), sum(p[2] for p in pairs))
        )
        blocks = [tuple(itertools.chain(*group)) for group in groups]
    return scores


def _between(topology: Topology, numa: Mapping[int, str], a: Block, b: Block) -> Score:
    links = [topology.link(x, y) for x in a for y in b]
    orders = [link.order if isinstance(link, Link) else 0 for link in links]
    weights = [link.weight if isinstance(link, Link) else 0 for link in links]
    return min(orders), sum(weights), sum(x in numa and numa[x] == numa.get(y) for x in a for y in b)


def _group(blocks: list[Block], size: int, between: Callable[[Block, Block], Score]) -> list[list[Block]]:
    """Parts `blocks` into groups of `size`, the slowest link first, then the sum, as good as they can be."""
    scores = {(i, j): between(blocks[i], blocks[j]) for i, j in itertools.combinations(range(len(blocks)), 2)}
    best: list[tuple[int, ...]] = []
    best_score: Score = (-1, -1, -1)
    # No grouping can have larger sums than one whose every link is the machine's best.
    most = [max((score[at] for score in scores.values()), default=0) for at in (1, 2)]
    per_group = size * (size - 1) // 2
    steps = 0

    def search(left: tuple[int, ...], groups: list[tuple[int, ...]], score: Score) -> None:
        nonlocal best, best_score, steps
        steps += 1
        open_pairs = per_group * (len(left) // size)
        bound = (score[0], score[1] + most[0] * open_pairs, score[2] + most[1] * open_pairs)
        if bound <= best_score or (steps > _MAX_STEPS and best):
            return
        if not left:
            best, best_score = list(groups), score
            return
        options = []
        for mates in itertools.combinations(left[1:], size - 1):
            group = (left[0], *mates)
            pairs = [scores[pair] for pair in itertools.combinations(group, 2)]
            own = (min(pair[0] for pair in pairs), sum(p[1] for p in pairs), sum(p[2] for p in pairs))
            options.append((own, group))
        for own, group in sorted(options, key=lambda option: ([-part for part in option[0]], option[1])):
            rest = tuple(block for block in left if block not in group)
            joined = (min(score[0], own[0]), score[1] + own[1], score[2] + own[2])
            search(rest, [*groups, group], joined)

    search(tuple(range(len(blocks))), [], (10**6, 0, 0))
    return [[blocks[at] for at in group] for group in best]
