"""Why a trial parts from the reference: decided by what was recorded, with the evidence in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from drivetrain.bench import parity_errors as errors
from drivetrain.bench.parity_records import RankStep, TrialRecord, What

CauseName = Literal[
    "sample_order",
    "augmentation",
    "initial_weights",
    "loss_averaging",
    "not_reduced",
    "batchnorm",
    "dropout",
    "buffers",
    "clipping",
    "optimizer",
    "reduction_order",
    "unknown",
]


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What probably made the difference, and what speaks for it."""

    name: CauseName
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Parting:
    """The first thing that differs; see `parity_compare.Difference`."""

    step: int
    what: str
    name: str
    expected: str | float
    found: str | float
    error: float | None = None
    rank: int = 0


@dataclass(frozen=True)
class _Case:
    parting: Parting
    reference: TrialRecord
    trial: TrialRecord
    rounding: TrialRecord | None

    @property
    def begins_at_once(self) -> bool:
        """Whether the first forward or backward already differ."""
        return self.parting.step == 1 and self.parting.what in ("loss", "gradient", "gradient_norm")


def likely_cause(
    parting: Parting, reference: TrialRecord, trial: TrialRecord, rounding: TrialRecord | None
) -> Cause:
    """The first explanation that the records support, the most specific evidence first.

    Args:
        rounding: see `parity_compare.compare`.
    """
    case = _Case(parting, reference, trial, rounding)
    return next(cause for explain in _EXPLANATIONS if (cause := explain(case)) is not None)


def _other_samples(case: _Case) -> Cause | None:
    if case.parting.what != "samples":
        return None
    evidence = f"at step {case.parting.step} other samples are trained than in the single-process run"
    do = "the order, the shares or the length of the data set depend on the ranks"
    return Cause(name="sample_order", evidence=f"{evidence}: {do}")


def _other_inputs(case: _Case) -> Cause | None:
    if case.parting.what != "inputs":
        return None
    step = case.parting.step
    expected = {p: s for r in case.reference.ranks for p, s in r.steps[step].samples.items()}
    counts = {
        rank.rank: sum(expected.get(p) != s for p, s in rank.steps[step].samples.items())
        for rank in case.trial.ranks
    }
    total = sum(len(rank.steps[step].samples) for rank in case.trial.ranks)
    where = ", ".join(f"{count} on rank {rank}" for rank, count in counts.items() if count)
    evidence = (
        f"the same samples come with other contents: {where}, of {total} in step {step}. The data set or its"
        " transforms draw random numbers, or choose, by rank"
    )
    return Cause(name="augmentation", evidence=evidence)


def _other_start(case: _Case) -> Cause | None:
    if case.parting.what != "initial_weights":
        return None
    evidence = (
        "before the first step the weights are others: the model is built in a way that depends on rank"
    )
    return Cause(name="initial_weights", evidence=f"{evidence} or number of ranks")


def _weights_depend_on_the_cut(case: _Case) -> Cause | None:
    step = case.parting.step
    expected = _total_weight(case.reference, step)
    found = _total_weight(case.trial, step, copies=_copies(case, step))
    if errors.relative(found, expected) < 1e-6:
        return None
    evidence = (
        f"the weights of step {step}'s losses add up to {found:.6g}, and to {expected:.6g} in the"
        " single-process run: they depend on how the batch is cut, as where each micro-batch gives its mean"
    )
    return Cause(name="loss_averaging", evidence=evidence)


def _constant_factor(case: _Case) -> Cause | None:
    """Gradients, or losses, that are the reference's times one number."""
    factor = _gradient_factor(case)
    if factor is not None and abs(factor - 1) > 1e-3:
        evidence = f"every gradient of the first step is {factor:.4g} times the reference's"
        return Cause(name="loss_averaging", evidence=evidence + _which(factor, case))
    expected, found = errors.losses(case.reference), errors.losses(case.trial)
    ratios = [found[s] / expected[s] for s in found if expected.get(s)]
    if case.parting.what == "loss" and len(ratios) > 1 and math.isfinite(sum(ratios)):
        middle = sorted(ratios)[len(ratios) // 2]
        if abs(middle - 1) > 1e-2 and all(abs(r / middle - 1) < 1e-3 for r in ratios):
            evidence = f"the loss is {middle:.4g} times the reference's at every step"
            return Cause(name="loss_averaging", evidence=evidence + _which(middle, case))
    return None


def _not_reduced(case: _Case) -> Cause | None:
    kinds: tuple[What, ...] = ("gradient", "weight")
    for what in kinds:
        unlike = errors.unlike_ranks(case.trial, 1, what, errors.FIRST_GRADIENT_TOLERANCE)
        if unlike is not None:
            name, rank = unlike
            evidence = (
                f"after the first backward the {what} of {name} is not the same on rank {rank} as before"
            )
            return Cause(name="not_reduced", evidence=f"{evidence} it: nothing averages it over the ranks")
    return None


def _batch_norm(case: _Case) -> Cause | None:
    facts = case.reference.facts
    sizes, expected = _sizes(case.trial), _sizes(case.reference)
    if not case.begins_at_once or facts is None or not facts.batch_norms or sizes == expected:
        return None
    names = ", ".join(facts.batch_norms[:2]) + (", …" if len(facts.batch_norms) > 2 else "")
    evidence = (
        f"{len(facts.batch_norms)} BatchNorm layers ({names}) normalise over {_write(sizes)} samples at once,"
        f" and over {_write(expected)} in the single-process run. --micro-batch {min(sizes)} makes them alike"
        " where it divides all shares evenly; sync_batchnorm normalises over all ranks"
    )
    return Cause(name="batchnorm", evidence=evidence)


def _dropout(case: _Case) -> Cause | None:
    step = case.parting.step
    if not any(
        rank.steps[s].drew_random
        for trial in (case.reference, case.trial)
        for rank in trial.ranks
        for s in rank.steps
        if s <= step
    ):
        return None
    facts = case.reference.facts
    names = f" (dropout: {', '.join(facts.dropouts[:2])})" if facts is not None and facts.dropouts else ""
    evidence = (
        f"the forward draws random numbers{names}, and these belong to a rank and micro-batch, not to a"
        " sample. Set the dropout to 0 to compare the rest"
    )
    return Cause(name="dropout", evidence=evidence)


def _buffers(case: _Case) -> Cause | None:
    """Buffers that training changes, and that a later forward reads: each rank has its own."""
    facts = case.reference.facts
    if case.begins_at_once or facts is None:
        return None
    own = [f"{name}." if name else "" for name in facts.batch_norms]
    drifted = [
        item
        for item in errors.buffer_errors(case.reference, case.trial, 1)
        if item.error > errors.FIRST_GRADIENT_TOLERANCE and not item.name.startswith(tuple(own) or ("\0",))
    ]
    if not drifted:
        return None
    item = max(drifted, key=lambda error: error.error)
    evidence = (
        f"the first step's loss and gradients agree, but after it the buffer {item.name} is off by"
        f" {item.error:.1g} on rank {item.rank}: it comes from this rank's samples alone, and is used later"
    )
    return Cause(name="buffers", evidence=evidence)


def _update(case: _Case) -> Cause | None:
    """The first update differs although its gradients do not."""
    if case.parting.step != 1 or case.parting.what not in ("gradient_norm", "weight"):
        return None
    worst = errors.worst(errors.gradient_errors(case.reference, case.trial, 1))
    if worst is None or worst.error > errors.FIRST_GRADIENT_TOLERANCE:
        return None
    agree = f"the first step's gradients agree to {worst.error:.1g}"
    if case.parting.what == "gradient_norm":
        evidence = f"{agree}, but not the norm that they are clipped by: it is not the whole gradient's"
        return Cause(name="clipping", evidence=evidence)
    if _is_rounding(case):
        return None
    return Cause(name="optimizer", evidence=f"{agree}, but not what the optimizer makes of them")


def _reduction_order(case: _Case) -> Cause | None:
    """Sums in another order: tiny at first, then growing."""
    if case.begins_at_once or case.parting.step == 1:
        return None
    worst = errors.worst(errors.gradient_errors(case.reference, case.trial, 1))
    if worst is None or worst.error > errors.FIRST_GRADIENT_TOLERANCE:
        return None
    if case.rounding is not None and not _is_rounding(case):
        return None
    course = _loss_errors(case.reference, case.trial)
    first = course.get(1, math.nan)
    last = max(course.values())
    evidence = (
        f"the first step's gradients agree to {worst.error:.1g} and its loss to {first:.1g}; the difference"
        f" grows over the steps, to {last:.1g}: this training amplifies rounding"
    )
    if case.rounding is not None:
        noise = max(_loss_errors(case.reference, case.rounding).values(), default=math.nan)
        evidence += (
            f". The single-process run with its samples in reverse order is off by {noise:.1g} as well"
        )
    return Cause(name="reduction_order", evidence=evidence)


def _unknown(case: _Case) -> Cause:
    course = _loss_errors(case.reference, case.trial)
    shown = ", ".join(f"{error:.1g}" for error in list(course.values())[:8])
    evidence = (
        f"samples, inputs and first weights are the same; the loss is off by {shown} in the first steps"
    )
    return Cause(name="unknown", evidence=evidence)


_EXPLANATIONS: tuple[Callable[[_Case], Cause | None], ...] = (
    _other_samples,
    _other_inputs,
    _other_start,
    _weights_depend_on_the_cut,
    _constant_factor,
    _not_reduced,
    _batch_norm,
    _dropout,
    _update,
    _buffers,
    _reduction_order,
    _unknown,
)


def _total_weight(trial: TrialRecord, step: int, *, copies: int = 1) -> float:
    return sum(p.weight for rank in trial.ranks for p in rank.steps[step].pieces) / copies


def _copies(case: _Case, step: int) -> int:
    """How many ranks see each sample (those of a tensor group, of a pipeline)."""
    seen = sum(len(rank.steps[step].samples) for rank in case.trial.ranks)
    alone = sum(len(rank.steps[step].samples) for rank in case.reference.ranks)
    return max(1, round(seen / alone)) if alone else 1


def _gradient_factor(case: _Case) -> float | None:
    """The number that the reference's first gradients must be multiplied by, if it is one for all."""
    expected, found = (errors.whole(trial, 1, "gradient") for trial in (case.reference, case.trial))
    pairs = [
        (a, b)
        for name in expected.keys() & found.keys()
        for a, b in zip(expected[name].products, found[name].products, strict=True)
    ]
    square = sum(a * a for a, _ in pairs)
    if not square or not math.isfinite(square):
        return None
    factor = sum(a * b for a, b in pairs) / square
    rest = math.sqrt(sum((b - factor * a) ** 2 for a, b in pairs))
    total = math.sqrt(sum(b * b for _, b in pairs))
    return factor if total and rest < 1e-3 * total else None


def _which(factor: float, case: _Case) -> str:
    """Names the number, where it is one of the run's own."""
    ranks = len(case.trial.ranks)
    pieces = max((len(s.pieces) for s in _first_steps(case.trial)), default=1)
    named = {  # of equal numbers the last counts
        ranks * pieces: f"the {ranks * pieces} micro-batches of all ranks",
        pieces: f"the {pieces} micro-batches of a rank",
        ranks: f"the {ranks} ranks",
    }
    for number, words in named.items():
        for value, how in ((number, "a sum"), (1 / number, "a mean")):
            if number > 1 and abs(factor / value - 1) < 1e-3:
                other = "an average" if how == "a sum" else "a sum"
                return f": {how} over {words} where {other} belongs"
    return ""


def _first_steps(trial: TrialRecord) -> list[RankStep]:
    return [rank.steps[1] for rank in trial.ranks if 1 in rank.steps]


def _sizes(trial: TrialRecord) -> tuple[int, ...]:
    """The sizes of micro-batches in the first step, each once."""
    return tuple(sorted({piece.size for step in _first_steps(trial) for piece in step.pieces}))


def _write(sizes: tuple[int, ...]) -> str:
    return " or ".join(map(str, sizes))


def _loss_errors(reference: TrialRecord, trial: TrialRecord) -> dict[int, float]:
    expected = errors.losses(reference)
    return {s: errors.relative(x, expected[s]) for s, x in errors.losses(trial).items() if s in expected}


def _is_rounding(case: _Case) -> bool:
    """Whether the reference is as far off from itself when only the order of its sums changes."""
    if case.rounding is None or case.parting.error is None:
        return False
    noise = _loss_errors(case.reference, case.rounding)
    course = _loss_errors(case.reference, case.trial)
    return max(course.values(), default=0.0) <= errors.NOISE_FACTOR * max(noise.values(), default=0.0)
