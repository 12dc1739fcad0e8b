"""Two finished runs held against each other by their certificates: the first step at which they part."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.spec.errors import InputError
from drivetrain.spec.run_dir import RunDir

LOSS_TOLERANCE = 1e-5
"""Relative: what the order of sums does to an fp32 loss in one step; later steps may part further by it."""


@dataclass(frozen=True, kw_only=True)
class Parting:
    """Where two runs differ first. `what` is samples, loss, gradient_norm or weights."""

    step: int
    what: str
    a: str | float
    b: str | float
    relative: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Two runs, step by step.

    Attributes:
        steps: that both have.
        only_a, only_b: steps that one has beyond these.
        is_same_to_the_bit: whether every number was the same.
        partings: the first of each kind, in order of steps; empty where the runs agree.
    """

    steps: int
    only_a: int
    only_b: int
    is_same_to_the_bit: bool
    max_rel_loss_error: float
    partings: tuple[Parting, ...]


def compare_runs(a: Path, b: Path) -> RunComparison:
    """Compares the certificates of two run directories.

    The samples are compared exactly, losses and gradient norms to `LOSS_TOLERANCE`, and weights to the bit
    where both runs summed those of as many ranks.

    Raises:
        InputError: one has no certificate, or they have no step in common.
    """
    first, second = _read(a), _read(b)
    common = sorted(first.keys() & second.keys())
    if not common:
        raise InputError(f"parity {a} {b}", "they have no step in common", "name two runs of the same recipe")
    partings: dict[str, Parting] = {}
    is_same, worst = True, 0.0
    for step in common:
        for parting in _partings(step, first[step], second[step]):
            is_same = False
            if parting.what == "loss" and parting.relative is not None:
                worst = max(worst, parting.relative)
            if parting.relative is None or parting.relative > LOSS_TOLERANCE:
                partings.setdefault(parting.what, parting)
    return RunComparison(
        steps=len(common),
        only_a=len(first) - len(common),
        only_b=len(second) - len(common),
        is_same_to_the_bit=is_same,
        max_rel_loss_error=worst,
        partings=tuple(sorted(partings.values(), key=lambda item: item.step)),
    )


def as_json(comparison: RunComparison) -> dict[str, Any]:
    """Keys are part of the public interface, see docs/parity.md."""
    first = comparison.partings[0] if comparison.partings else None
    return {
        "steps": comparison.steps,
        "status": "differs" if first else "equal",
        "same_to_the_bit": comparison.is_same_to_the_bit,
        "max_rel_loss_error": comparison.max_rel_loss_error,
        "first_difference": None
        if first is None
        else {"step": first.step, "what": first.what, "a": first.a, "b": first.b},
    }


def as_text(comparison: RunComparison) -> str:
    """The verdict in a few lines."""
    steps = f"{comparison.steps} steps in common"
    beyond = [
        f"{count} more in the {which} run"
        for count, which in ((comparison.only_a, "first"), (comparison.only_b, "second"))
        if count
    ]
    lines = [", ".join([steps, *beyond])]
    if comparison.is_same_to_the_bit:
        lines.append("the runs are the same to the bit")
    elif not comparison.partings:
        lines.append(f"the runs are equal: losses within {comparison.max_rel_loss_error:.1e}")
    for parting in comparison.partings:
        size = f" (relative {parting.relative:.1e})" if parting.relative is not None else ""
        what = _WORDS[parting.what]
        lines.append(f"{what} differ first at step {parting.step}: {parting.a} and {parting.b}{size}")
    return "\n".join(lines)


_WORDS = {
    "samples": "the samples consumed",
    "loss": "losses",
    "gradient_norm": "gradient norms",
    "weights": "the weights' bits",
}


def _partings(step: int, a: dict[str, Any], b: dict[str, Any]) -> list[Parting]:
    found = []
    if a["samples"] != b["samples"]:
        found.append(Parting(step=step, what="samples", a=a["samples"], b=b["samples"]))
    for key, what in (("loss", "loss"), ("grad_norm", "gradient_norm")):
        x, y = a.get(key), b.get(key)
        if x != y and (key == "loss" or (x is not None and y is not None)):
            found.append(Parting(step=step, what=what, a=_number(x), b=_number(y), relative=_relative(x, y)))
    x, y = a.get("weights"), b.get("weights")
    if x is not None and y is not None and len(x) == len(y) and x != y:
        rank = next(index for index, pair in enumerate(zip(x, y, strict=True)) if pair[0] != pair[1])
        found.append(Parting(step=step, what="weights", a=f"rank {rank}: {x[rank]:.0f}", b=f"{y[rank]:.0f}"))
    return found


def _relative(x: float | None, y: float | None) -> float:
    if x is None or y is None:
        return math.inf  # one of them was not finite
    return abs(x - y) / max(abs(x), abs(y))


def _number(value: float | None) -> str | float:
    return "not finite" if value is None else value


def _read(folder: Path) -> dict[int, dict[str, Any]]:
    path = RunDir(folder).certificate
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        found = "there is no such folder" if not folder.is_dir() else f"it has no {path.name}"
        raise InputError(f"the run {folder}", found, "name a folder that drivetrain train wrote") from error
    steps = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            steps[int(entry["step"])] = {"samples": str(entry["samples"]), **entry}
        except (ValueError, KeyError, TypeError):
            if number < len(lines) - 1:  # the last line of a killed run may be torn
                raise InputError(f"{path}, line {number}", "it is damaged", "name another run") from None
    return steps
