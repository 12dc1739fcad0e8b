"""Whether a trial did what the reference did, and if not, where they part first. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from drivetrain.bench import parity_errors as errors
from drivetrain.bench.parity_cause import Cause, Parting, likely_cause
from drivetrain.bench.parity_records import Sample, TrialRecord, What

Verdict = Literal["equal", "differs", "not_checked", "failed"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where a trial parts from the reference.

    Attributes:
        name: of the tensor, or "position N" of a sample; "" for a loss.
        error: relative; None for samples, which are the same or not.
    """

    step: int
    what: str
    name: str
    expected: str | float
    found: str | float
    error: float | None
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A trial against the reference. The errors are the largest over all steps and tensors; None where none
    could be had."""

    verdict: Verdict
    reason: str = ""
    loss_error: float | None = None
    gradient_error: float | None = None
    weight_error: float | None = None
    difference: Difference | None = None


def compare(reference: TrialRecord, trial: TrialRecord, rounding: TrialRecord | None = None) -> Comparison:
    """Compares `trial` with the single-process run.

    A trial that failed half way is compared as far as it came: how it parted before is the better news.

    Args:
        rounding: the reference once more, with the samples of each micro-batch in reverse order, which
            changes nothing but the order of sums. With it, weights and later gradients may be `NOISE_FACTOR`
            times as far off as it is, where that is more than the fixed tolerances.
    """
    if trial.status == "refused":
        return Comparison(verdict="not_checked", reason=trial.reason)
    parting = next(_partings(reference, trial, rounding), None)
    found = _Errors.of(reference, trial)
    if parting is not None:
        return found.comparison("differs", difference=_difference(parting, reference, trial, rounding))
    if trial.status == "failed":
        return found.comparison("failed", reason=trial.reason)
    return found.comparison("equal")


@dataclass(frozen=True)
class _Errors:
    loss: float | None
    gradient: float | None
    weight: float | None

    @classmethod
    def of(cls, reference: TrialRecord, trial: TrialRecord) -> _Errors:
        expected = errors.losses(reference)
        loss = [errors.relative(x, expected[s]) for s, x in errors.losses(trial).items() if s in expected]
        gradients = [
            item.error
            for step in errors.print_steps(trial, "gradient")
            for item in errors.gradient_errors(reference, trial, step)
        ]
        weights = [
            item.error
            for step in errors.print_steps(trial, "weight")
            if step > 0
            for item in errors.weight_errors(reference, trial, step)
        ]
        return cls(*(max(values, default=None) for values in (loss, gradients, weights)))

    def comparison(
        self, verdict: Verdict, *, reason: str = "", difference: Difference | None = None
    ) -> Comparison:
        return Comparison(
            verdict=verdict,
            reason=reason,
            loss_error=self.loss,
            gradient_error=self.gradient,
            weight_error=self.weight,
            difference=difference,
        )


def _difference(
    parting: Parting, reference: TrialRecord, trial: TrialRecord, rounding: TrialRecord | None
) -> Difference:
    return Difference(
        step=parting.step,
        what=parting.what,
        name=parting.name,
        expected=parting.expected,
        found=parting.found,
        error=parting.error,
        cause=likely_cause(parting, reference, trial, rounding),
    )


def _partings(reference: TrialRecord, trial: TrialRecord, rounding: TrialRecord | None) -> Iterator[Parting]:
    """All differences, in the order in which one leads to the next."""
    loss, expected_loss = errors.losses(trial), errors.losses(reference)
    norm, expected_norm = errors.grad_norms(trial), errors.grad_norms(reference)
    for step in sorted(expected_loss.keys() & loss.keys()):
        yield from _samples(reference, trial, step)
        if step == 1 and _both_have(reference, trial, 0, "weight"):
            found = errors.start_errors(reference, trial)
            yield from _tensors(found, step, "initial_weights", lambda _: errors.START_TOLERANCE)
        yield from _numbers(loss[step], expected_loss[step], step, "loss", errors.LOSS_TOLERANCE)
        if _both_have(reference, trial, step, "gradient"):
            found = errors.gradient_errors(reference, trial, step)
            yield from _tensors(found, step, "gradient", _gradient_tolerance(reference, rounding, step))
        if step in norm and step in expected_norm:
            tolerance = errors.FIRST_GRADIENT_TOLERANCE if step == 1 else errors.NORM_TOLERANCE
            yield from _numbers(norm[step], expected_norm[step], step, "gradient_norm", tolerance)
        if _both_have(reference, trial, step, "weight"):
            found = errors.weight_errors(reference, trial, step)
            yield from _tensors(found, step, "weight", _weight_tolerance(reference, rounding, step))


def _both_have(reference: TrialRecord, trial: TrialRecord, step: int, what: What) -> bool:
    """One that was ended half way may lack a step's fingerprints on some ranks."""
    return all(step in errors.print_steps(record, what) for record in (reference, trial))


def _gradient_tolerance(
    reference: TrialRecord, rounding: TrialRecord | None, step: int
) -> Callable[[str], float]:
    if step == 1:
        return lambda _: errors.FIRST_GRADIENT_TOLERANCE
    noise = errors.gradient_errors(reference, rounding, step) if rounding is not None else []
    return _at_least(errors.LAST_GRADIENT_TOLERANCE, noise)


def _weight_tolerance(
    reference: TrialRecord, rounding: TrialRecord | None, step: int
) -> Callable[[str], float]:
    noise = errors.weight_errors(reference, rounding, step) if rounding is not None else []
    return _at_least(errors.WEIGHT_TOLERANCE, noise)


def _at_least(least: float, noise: list[errors.TensorError]) -> Callable[[str], float]:
    by_name = {item.name: errors.NOISE_FACTOR * item.error for item in noise}
    return lambda name: max(least, by_name.get(name, 0.0))


def _numbers(found: float, expected: float, step: int, what: str, tolerance: float) -> Iterator[Parting]:
    error = errors.relative(found, expected)
    if error > tolerance:
        yield Parting(step=step, what=what, name="", expected=expected, found=found, error=error)


def _tensors(
    found: list[errors.TensorError], step: int, what: str, tolerance: Callable[[str], float]
) -> Iterator[Parting]:
    """The worst of those that are too far off, if any."""
    item = errors.worst([item for item in found if item.error > tolerance(item.name)])
    if item is not None:
        yield Parting(
            step=step,
            what=what,
            name=item.name,
            expected=item.expected,
            found="no rank has it" if math.isnan(item.found) and item.error == math.inf else item.found,
            error=item.error,
            rank=item.rank,
        )


def _samples(reference: TrialRecord, trial: TrialRecord, step: int) -> Iterator[Parting]:
    expected: dict[int, Sample] = {}
    for rank in reference.ranks:
        expected |= rank.steps[step].samples
    others: list[Parting] = []
    for rank in trial.ranks:
        for position, sample in sorted(rank.steps[step].samples.items()):
            wanted = expected.get(position)
            if wanted == sample:
                continue
            what = "inputs" if wanted is not None and wanted.id == sample.id else "samples"
            expects = "no sample" if wanted is None else f"sample {wanted.id}"
            finds = f"sample {sample.id}"
            if what == "inputs":
                assert wanted is not None
                expects, finds = f"{expects}, {wanted.content}", f"{finds}, {sample.content}"
            others.append(
                Parting(
                    step=step,
                    what=what,
                    name=f"position {position}",
                    expected=expects,
                    found=finds,
                    rank=rank.rank,
                )
            )
    seen = {position for rank in trial.ranks for position in rank.steps[step].samples}
    others += [
        Parting(
            step=step,
            what="samples",
            name=f"position {position}",
            expected=f"sample {expected[position].id}",
            found="on no rank",
        )
        for position in sorted(expected.keys() - seen)
    ]
    # That other samples came matters more than that others again look different.
    yield from sorted(others, key=lambda parting: parting.what == "inputs")
