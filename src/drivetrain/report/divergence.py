"""Whether a training went to pieces, told by its losses, in sentences."""

from __future__ import annotations

import math
from typing import Final

from drivetrain.report.loss import LossAt
from drivetrain.report.state import RunState
from drivetrain.report.wording import count

# A run that starts anew begins at the loss of knowing nothing, which no sound training ends above.
_ABOVE_NOTHING_LEARNT: Final = 1.5
# One that rose and came back to about its start has forgotten how to learn: dead units, say.
_BACK_AT_START: Final = 0.95
# A resumed one starts low, where a few hard batches already double the loss.
_ABOVE_RESUMED: Final = 3.0
# Overfitting raises the held-out loss too, but not by this much.
_HELD_OUT_GROWTH: Final = 10.0


def divergence(state: RunState) -> list[str]:
    """A sentence for each loss that grew where it should have fallen; empty for a sound run."""
    training, held_out = _training(state), _held_out(state)
    if held_out is None:
        return [training] if training is not None else []
    lowest, last = held_out
    if training is None and not _is_beyond(last.value, lowest.value, _HELD_OUT_GROWTH):
        return []
    return [*([training] if training is not None else []), _grew("the held-out loss", lowest, last)]


def _training(state: RunState) -> str | None:
    loss = state.loss
    value = loss.value
    if value is None:
        return None
    if not math.isfinite(value):
        return f"the training loss became {value} at step {count(loss.last_step)}"
    last = LossAt(value=value, step=loss.last_step)
    if loss.first is None or loss.early is None:
        return None
    if loss.first.step != 1:  # resumed, or a run so long that only its last steps are read
        is_worse = _is_beyond(value, loss.early.value, _ABOVE_RESUMED)
        return _grew("the training loss", loss.early, last) if is_worse else None
    highest = loss.highest
    if highest is not None and value > 0 and highest.step < last.step:
        is_back = _BACK_AT_START * loss.first.value <= value <= _ABOVE_NOTHING_LEARNT * loss.first.value
        if is_back and _is_beyond(highest.value, loss.first.value, _ABOVE_NOTHING_LEARNT):
            rise = _grew("the training loss", loss.first, highest)
            return f"{rise} and ended at {value:.4g}, about where it began"
    lowest = loss.lowest if loss.lowest is not None else loss.first
    if lowest.value >= loss.first.value:
        is_worse = _is_beyond(value, loss.first.value, _ABOVE_NOTHING_LEARNT)
        return _grew("the training loss", loss.first, last) if is_worse else None
    # More than half of what had been learnt is lost again.
    lost = value - lowest.value
    is_worse = lost > 0.5 * (loss.first.value - lowest.value) and _is_beyond(value, lowest.value, 2.0)
    return _grew("the training loss", lowest, last) if is_worse else None


def _held_out(state: RunState) -> tuple[LossAt, LossAt] | None:
    """The lowest held-out loss and the last one, where the last is higher."""
    losses = [
        LossAt(value=value, step=event.step)
        for event in state.evals
        for name, value in event.metrics.items()
        if name.rsplit("/", 1)[-1] == "loss"
    ]
    finite = [loss for loss in losses if math.isfinite(loss.value)]
    if not finite:
        return None
    lowest, last = min(finite, key=lambda loss: loss.value), losses[-1]
    if math.isfinite(last.value) and last.value <= lowest.value:
        return None
    return lowest, last


def _is_beyond(value: float, reference: float, factor: float) -> bool:
    """Whether `value` is `factor` times `reference` or not finite; for losses below zero by the distance."""
    if not math.isfinite(value):
        return True
    return reference != 0 and value - reference > (factor - 1) * abs(reference)


def _grew(what: str, low: LossAt, high: LossAt) -> str:
    return (
        f"{what} grew from {low.value:.4g} at step {count(low.step)} "
        f"to {high.value:.4g} at step {count(high.step)}"
    )
