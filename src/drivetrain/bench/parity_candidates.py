"""What is to be compared: from the words of the command line to strategies with a layout, or with the reason
why they have none."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from drivetrain.config.schema import STRATEGIES
from drivetrain.spec.errors import InputError
from drivetrain.spec.layout import AXES, Layout, plan_layout

ALL = "all"
REFERENCE = "single"

# What `all` adds where there are ranks for it: ddp × tp, fsdp × tp, pp × dp. The rest of the ranks goes to
# the strategy's own axis.
_COMPOSITIONS: tuple[tuple[str, Mapping[str, int]], ...] = (
    ("tensor", {"tp": 2}),
    ("fsdp", {"tp": 2}),
    ("pipeline", {"pp": 2}),
)
_COMPOSED_FROM = 4


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A strategy on so many ranks.

    Attributes:
        mesh: the degrees that were asked for.
        layout: None where there is none on so many ranks, for `reason`.
    """

    strategy: str
    world_size: int
    mesh: Mapping[str, int] = field(default_factory=dict)
    layout: Layout | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        """As on the command line."""
        degrees = ",".join(f"{axis}={degree}" for axis, degree in self.mesh.items())
        return f"{self.strategy}:{degrees}" if degrees else self.strategy

    def describe_layout(self) -> str:
        return self.layout.describe() if self.layout is not None else "none"


def candidates(written: str, world_sizes: Iterable[int]) -> tuple[Candidate, ...]:
    """The candidates that `--strategies written` means, on each of `world_sizes`, smaller ones first.

    `written` is `all`, or names with commas between them, each with degrees of the mesh if wanted:
    `ddp,tensor:tp=2,dp_replicate=2,fsdp`.

    Raises:
        InputError: a name or an axis that does not exist, or degrees that are no numbers. Degrees that do not
            fit the ranks are no mistake: such a candidate is told of, and not run.
    """
    asked = _parse(written)
    found: dict[tuple[str, int], Candidate] = {}
    for world_size in sorted(set(world_sizes)):
        for name, mesh in asked:
            kinds = _everything(world_size) if name == ALL else [(name, mesh)]
            for strategy, degrees in kinds:
                candidate = _planned(strategy, degrees, world_size)
                found.setdefault((candidate.name, candidate.world_size), candidate)
    return tuple(found.values())


def check_gpus(found: Sequence[Candidate], num_gpus: int) -> tuple[Candidate, ...]:
    """`found`, without what needs several GPUs in one process where `num_gpus` are used."""
    reason = (
        f"it spreads over the GPUs of one process, and {num_gpus} are used here: it would be the run in one"
        " process itself"
    )
    return tuple(
        replace(candidate, layout=None, reason=reason)
        if num_gpus < 2 and candidate.strategy != REFERENCE and _runs_in_one_process(candidate.strategy)
        else candidate
        for candidate in found
    )


def parse_world_sizes(written: str) -> tuple[int, ...]:
    """`1,2,3` as numbers.

    Raises:
        InputError: something else.
    """
    words = [word.strip() for word in written.split(",")]
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise InputError(
            f"--world-sizes {written}",
            "it is not numbers of processes with commas between them",
            "write for example --world-sizes 1,2,3",
        )
    return tuple(int(word) for word in words)


def _everything(world_size: int) -> list[tuple[str, Mapping[str, int]]]:
    own: list[tuple[str, Mapping[str, int]]] = [
        (name, {}) for name in STRATEGIES if name not in ("auto", REFERENCE)
    ]
    composed = world_size >= _COMPOSED_FROM and world_size % 2 == 0
    return own + [item for item in _COMPOSITIONS if composed and item[0] in STRATEGIES]


def _planned(strategy: str, mesh: Mapping[str, int], world_size: int) -> Candidate:
    if _runs_in_one_process(strategy):
        world_size = 1
    try:
        layout = plan_layout(strategy, world_size, mesh)
    except InputError as error:
        reason = f"on {world_size} ranks {error.found}; {error.do}"
        return Candidate(strategy=strategy, mesh=mesh, world_size=world_size, reason=reason)
    return Candidate(strategy=strategy, mesh=mesh, world_size=world_size, layout=layout)


def _runs_in_one_process(strategy: str) -> bool:
    try:
        plan_layout(strategy, 2)
    except InputError:
        return True
    return False


def _parse(written: str) -> Sequence[tuple[str, dict[str, int]]]:
    asked: list[tuple[str, dict[str, int]]] = []
    for word in filter(None, (part.strip() for part in written.split(","))):
        name, colon, degree = word.partition(":")
        if "=" in name and not colon and asked:  # a further degree of the one before
            degree = name
        else:
            asked.append((_known(name, written), {}))
        if degree:
            axis, number = _degree(degree, written)
            asked[-1][1][axis] = number
    if not asked:
        raise InputError(f"--strategies {written!r}", "it names none", f"write all, or {', '.join(_names())}")
    return asked


def _names() -> list[str]:
    return [name for name in STRATEGIES if name != "auto"]


def _known(name: str, written: str) -> str:
    if name == ALL or name in _names():
        return name
    asked = f"--strategies {written}"
    if name == "auto":
        raise InputError(asked, "auto is ddp on several processes", "name ddp, or all")
    near = difflib.get_close_matches(name, [ALL, *_names()], n=1)
    known = f"one of all, {', '.join(_names())}"
    do = f"did you mean {near[0]}? {known}" if near else known
    raise InputError(asked, f"there is no strategy {name!r}", do)


def _degree(word: str, written: str) -> tuple[str, int]:
    axis, equals, number = (part.strip() for part in word.partition("="))
    asked = f"--strategies {written}"
    if axis not in AXES:
        raise InputError(asked, f"there is no mesh axis {axis!r}", f"the axes are {', '.join(AXES)}")
    if not equals or not number.removeprefix("-").isdigit():
        raise InputError(asked, f"{word!r} gives {axis} no degree", "write for example tensor:tp=2")
    return axis, int(number)
