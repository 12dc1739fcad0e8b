"""How far a trial is from the reference: relative errors, by step and by tensor. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from drivetrain.bench.parity_records import Fingerprint, TrialRecord, What

LOSS_TOLERANCE = 1e-5
"""Relative, at every step: fp32 sums of another order differ by some 1e-7 in the first steps."""

START_TOLERANCE = 1e-6
"""Of the weights that training starts from, relative to each weight's norm; as a rule they are the same."""

FIRST_GRADIENT_TOLERANCE = 1e-4
"""Of the first step's gradients, which the same weights and inputs gave."""

LAST_GRADIENT_TOLERANCE = 1e-2
"""Of gradients after that: rounding has been through the optimizer, and AdamW turns it into whole steps where
a gradient is near 0. Measured on recipes/gpt.yaml: up to 1e-3 after 20 steps."""

NORM_TOLERANCE = 1e-3
"""Of the gradient's global norm, after the first step."""

WEIGHT_TOLERANCE = 1e-2
"""Of weights, relative to how far training has moved them. Measured on recipes/gpt.yaml: up to 2e-4."""

NOISE_FACTOR = 30.0
"""How many times as far as rounding alone a trial may go (see `compare`): one sample of a chaotic course."""

_FLOOR = 1e-3
"""A tensor's error is relative to its own norm or this share of the whole model's, whichever is more: what is
left of gradients that cancel (a bias before a norm) is rounding alone."""


@dataclass(frozen=True, kw_only=True)
class TensorError:
    """The error of one tensor on one rank, relative to `scale`."""

    name: str
    rank: int
    expected: float
    found: float
    error: float


def relative(found: float, expected: float) -> float:
    """|found - expected| / |expected|; infinite where only one of them is a number, 0 where neither is."""
    if not (math.isfinite(found) and math.isfinite(expected)):
        return 0.0 if math.isfinite(found) == math.isfinite(expected) else math.inf
    difference = abs(found - expected)
    return difference / max(abs(expected), 1e-12) if difference else 0.0


def distance(one: Fingerprint, other: Fingerprint) -> float:
    """The estimated norm of the difference of two tensors."""
    squares = [(a - b) ** 2 for a, b in zip(one.products, other.products, strict=True)]
    return math.sqrt(sum(squares) / len(squares))


def losses(trial: TrialRecord) -> dict[int, float]:
    """By step, as far as all ranks have come."""
    first = trial.ranks[0].steps
    return {s: step.loss for s, step in first.items() if all(s in rank.steps for rank in trial.ranks)}


def grad_norms(trial: TrialRecord) -> dict[int, float]:
    """By step, where the recipe clips."""
    steps = trial.ranks[0].steps
    return {s: step.grad_norm for s, step in steps.items() if step.grad_norm is not None}


def print_steps(trial: TrialRecord, what: What) -> list[int]:
    """The steps of which every rank has fingerprints of `what`."""
    steps = {step for step, kind in trial.ranks[0].prints if kind == what}
    return sorted(s for s in steps if all((s, what) in rank.prints for rank in trial.ranks))


def start_errors(reference: TrialRecord, trial: TrialRecord) -> list[TensorError]:
    """Of the weights that training starts from, relative to their norms."""
    expected = whole(reference, 0, "weight")
    scales = {name: print_.norm for name, print_ in expected.items()}
    return _errors(expected, trial, 0, "weight", _floored(scales, 1e-6))


def gradient_errors(reference: TrialRecord, trial: TrialRecord, step: int) -> list[TensorError]:
    """Of each gradient, before clipping, relative to its norm."""
    expected = whole(reference, step, "gradient")
    scales = {name: print_.norm for name, print_ in expected.items()}
    return _errors(expected, trial, step, "gradient", _floored(scales, _FLOOR))


def weight_errors(reference: TrialRecord, trial: TrialRecord, step: int) -> list[TensorError]:
    """Of each weight after `step`, relative to how far the reference had moved it by then."""
    start, expected = whole(reference, 0, "weight"), whole(reference, step, "weight")
    moved = {name: distance(expected[name], start[name]) for name in expected if name in start}
    return _errors(expected, trial, step, "weight", _floored(moved, _FLOOR))


def buffer_errors(reference: TrialRecord, trial: TrialRecord, step: int) -> list[TensorError]:
    """Of each buffer after `step`, relative to its norm."""
    expected = whole(reference, step, "buffer")
    return _errors(
        expected, trial, step, "buffer", {name: max(p.norm, 1e-12) for name, p in expected.items()}
    )


def unlike_ranks(trial: TrialRecord, step: int, what: What, tolerance: float) -> tuple[str, int] | None:
    """The first tensor that is not the same on two ranks that hold it, and the later one of these."""
    seen: dict[str, Fingerprint] = {}
    for rank in trial.ranks:
        for name, print_ in rank.prints.get((step, what), {}).items():
            first = seen.setdefault(name, print_)
            if distance(first, print_) > tolerance * max(first.norm, 1e-12):
                return name, rank.rank
    return None


def whole(trial: TrialRecord, step: int, what: What) -> dict[str, Fingerprint]:
    """The fingerprints of all tensors, each from the first rank that holds it."""
    found: dict[str, Fingerprint] = {}
    for rank in trial.ranks:
        for name, print_ in rank.prints.get((step, what), {}).items():
            found.setdefault(name, print_)
    return found


def worst(errors: list[TensorError]) -> TensorError | None:
    return max(errors, key=lambda item: item.error, default=None)


def _floored(scales: Mapping[str, float], share: float) -> dict[str, float]:
    floor = max(share * math.sqrt(sum(scale**2 for scale in scales.values())), 1e-12)
    return {name: max(scale, floor) for name, scale in scales.items()}


def _errors(
    expected: Mapping[str, Fingerprint],
    trial: TrialRecord,
    step: int,
    what: What,
    scales: Mapping[str, float],
) -> list[TensorError]:
    """On every rank; a tensor that no rank holds has an infinite error, one too many is left out."""
    found = [
        TensorError(
            name=name,
            rank=rank.rank,
            expected=expected[name].norm,
            found=print_.norm,
            error=_relative_distance(print_, expected[name], scales[name]),
        )
        for rank in trial.ranks
        for name, print_ in rank.prints.get((step, what), {}).items()
        if name in expected and name in scales
    ]
    known = {item.name for item in found}
    return found + [
        TensorError(name=name, rank=0, expected=p.norm, found=math.nan, error=math.inf)
        for name, p in expected.items()
        if name not in known
    ]


def _relative_distance(found: Fingerprint, expected: Fingerprint, scale: float) -> float:
    if not (math.isfinite(found.norm) and math.isfinite(expected.norm)):
        return relative(found.norm, expected.norm)
    return distance(found, expected) / scale
