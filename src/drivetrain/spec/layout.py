"""How ranks are laid out: the degrees of the mesh, and what each strategy allows. Pure arithmetic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.spec.errors import InputError

AXES = ("pp", "dp_replicate", "dp_shard", "tp")
"""Outermost first: ranks of a tensor group are neighbours, then those of a shard group, because these talk
most; neighbours are the best-linked GPUs of a host."""

REST = -1
"""A degree that stands for "whatever ranks are left"."""

_DATA_AXES = frozenset({"dp_replicate", "dp_shard"})

# The axes that a strategy may use; and those that take the rest of the ranks unless told otherwise: the first
# of them that the user gave no degree.
_ALLOWED: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "single": (frozenset(), ()),
    "data_parallel": (frozenset(), ()),
    "ddp": (frozenset({"dp_replicate"}), ("dp_replicate",)),
    "fsdp": (_DATA_AXES | {"tp"}, ("dp_shard",)),
    "tensor": (_DATA_AXES | {"tp"}, ("tp", "dp_replicate")),
    "pipeline": (_DATA_AXES | {"tp", "pp"}, ("pp", "dp_replicate")),
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Degrees of the mesh's axes; their product is the number of ranks.

    Attributes:
        dp_replicate: groups of ranks that hold the same weights and see different samples.
        dp_shard: ranks that share one copy of weights and optimizer state, and see different samples.
        tp: ranks that share each layer's matrices, and see the same samples.
        pp: places of a pipeline, each with one stage or several.
        folds: whether the stages run to the last place and back again, so that the last is at the first.
    """

    strategy: str
    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    folds: bool = False

    @property
    def degrees(self) -> tuple[int, ...]:
        """By axis, in the order of `AXES`."""
        return tuple(getattr(self, axis) for axis in AXES)

    @property
    def world_size(self) -> int:
        return math.prod(self.degrees)

    @property
    def num_data_ranks(self) -> int:
        """How many ranks see different samples."""
        return self.dp_replicate * self.dp_shard

    def place(self, rank: int) -> dict[str, int]:
        """The coordinate of `rank` on each axis."""
        coordinates = {}
        for axis, degree in zip(reversed(AXES), reversed(self.degrees), strict=True):
            rank, coordinates[axis] = divmod(rank, degree)
        return {axis: coordinates[axis] for axis in AXES}

    def data_rank(self, rank: int) -> int:
        """Which share of the samples `rank` sees."""
        place = self.place(rank)
        return place["dp_replicate"] * self.dp_shard + place["dp_shard"]

    def is_counted(self, rank: int) -> bool:
        """Whether the samples of `rank` are counted by it: of ranks that see the same samples one is, the
        first of its tensor group that has the last stage, where the loss is."""
        place = self.place(rank)
        return place["tp"] == 0 and place["pp"] == (0 if self.folds else self.pp - 1)

    def describe(self) -> str:
        """The axes that are more than 1, as a user writes them."""
        used = [f"{axis}={degree}" for axis, degree in zip(AXES, self.degrees, strict=True) if degree > 1]
        return ",".join(used) or "one rank"


def strategy_of(name: str, world_size: int) -> str:
    """The strategy that `name` stands for: "auto" is `single` on one rank and `ddp` on several."""
    if name == "auto":
        return "ddp" if world_size > 1 else "single"
    return name


def plan_layout(strategy: str, world_size: int, mesh: Mapping[str, int] | None = None) -> Layout:
    """Completes the degrees that the user gave in `mesh` to a layout of `world_size` ranks.

    At most one degree may be -1, "the rest"; an axis not named is 1, but for the strategy's own axis, which
    takes the rest where no degree is -1 (tensor and pipeline: replicas do where the own axis is given).

    Raises:
        InputError: an unknown axis or strategy, an axis that the strategy does not use, or degrees that do
            not fill the ranks; names the nearest layout that does.
    """
    mesh = dict(mesh or {})
    asked = f"strategy {strategy}, mesh {_write(mesh)}, on {world_size} ranks"
    if strategy not in _ALLOWED:
        raise InputError(asked, "there is no such strategy", f"one of {', '.join(_ALLOWED)}")
    allowed, own_axes = _ALLOWED[strategy]
    for axis, degree in mesh.items():
        if axis not in AXES:
            raise InputError(asked, f"there is no mesh axis {axis!r}", f"the axes are {', '.join(AXES)}")
        if degree != REST and degree < 1:
            raise InputError(asked, f"{axis} is {degree}", "a degree is at least 1, or -1 for the rest")
        if degree not in (1, REST) and axis not in allowed:
            uses = ", ".join(sorted(allowed)) or "no axis: it runs on one rank"
            raise InputError(asked, f"{strategy} does not use {axis}", f"{strategy} uses {uses}")
    open_axes = [axis for axis, degree in mesh.items() if degree == REST]
    if len(open_axes) > 1:
        raise InputError(asked, f"{' and '.join(open_axes)} are both -1", "only one can take the rest")
    fixed: dict[str, Any] = {axis: degree for axis, degree in mesh.items() if degree != REST}
    own_axis = next((axis for axis in own_axes if axis not in fixed), own_axes[-1] if own_axes else "")
    rest_axis = open_axes[0] if open_axes else own_axis
    taken = math.prod(fixed.values())
    if rest_axis and rest_axis not in fixed and world_size % taken == 0:
        return Layout(strategy=strategy, **fixed, **{rest_axis: world_size // taken})
    if taken == world_size:
        return Layout(strategy=strategy, **fixed)
    nearest = _nearest(strategy, world_size, fixed)
    found = (
        f"the degrees make {taken} ranks"
        if rest_axis in fixed or not rest_axis
        else f"{taken} does not divide {world_size}"
    )
    raise InputError(asked, found, f"nearest layout: {nearest}")


def _nearest(strategy: str, world_size: int, fixed: Mapping[str, int]) -> str:
    """The layout of exactly `world_size` ranks whose degrees differ least, in ratio, from those given."""
    uses, own_axes = _ALLOWED[strategy]
    allowed = [axis for axis in AXES if axis in uses]
    if not allowed:
        return f"1 process, or strategy ddp on {world_size}"
    divisors = [number for number in range(1, world_size + 1) if world_size % number == 0]

    def distance(degrees: tuple[int, ...]) -> float:
        pairs = zip(allowed, degrees, strict=True)
        # An axis that nobody named and that does not take the rest is best left at 1.
        return sum(
            abs(math.log(degree / fixed.get(axis, 1)))
            for axis, degree in pairs
            if axis in fixed or axis not in own_axes
        )

    candidates = [d for d in itertools.product(divisors, repeat=len(allowed)) if math.prod(d) == world_size]
    best = min(candidates, key=lambda degrees: (distance(degrees), degrees))
    named = zip(allowed, best, strict=True)
    return _write({axis: degree for axis, degree in named if degree > 1 or axis in fixed})


def _write(mesh: Mapping[str, int]) -> str:
    return ",".join(f"{axis}={degree}" for axis, degree in mesh.items()) or "not given"
