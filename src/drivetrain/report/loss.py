"""The training loss as a person wants it: smoothed, and remembered at its start and at its lowest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_SMOOTHING: Final = 0.95
# From here on the smoothed loss is more than the luck of a few batches.
_STEADY_STEPS: Final = 10


@dataclass(frozen=True, kw_only=True)
class LossAt:
    """A loss and the step that it was seen at."""

    value: float
    step: int


class SmoothedLoss:
    """An exponential mean without the bias of its start. A loss that is not finite is shown as it is.

    Attributes:
        first: the first finite loss, as it was.
        early: the smoothed loss of the tenth step, or of the last one before.
        lowest, highest: the smoothed loss from the tenth step on; None before.
    """

    def __init__(self) -> None:
        self.first: LossAt | None = None
        self.early: LossAt | None = None
        self.lowest: LossAt | None = None
        self.highest: LossAt | None = None
        self._sum = 0.0
        self._weight = 0.0
        self._num_steps = 0
        self._last = math.nan
        self._last_step = -1

    def add(self, step: int, loss: float | None) -> None:
        """A step that came before is not taken twice (it may arrive from its rank and from the cluster)."""
        if loss is None or step <= self._last_step:
            return
        self._last, self._last_step = loss, step
        if not math.isfinite(loss):
            return
        self._num_steps += 1
        self._sum = _SMOOTHING * self._sum + (1 - _SMOOTHING) * loss
        self._weight = _SMOOTHING * self._weight + (1 - _SMOOTHING)
        smoothed = LossAt(value=self._sum / self._weight, step=step)
        if self.first is None:
            self.first = LossAt(value=loss, step=step)
        if self._num_steps <= _STEADY_STEPS:
            self.early = smoothed
        if self._num_steps < _STEADY_STEPS:
            return
        if self.lowest is None or smoothed.value < self.lowest.value:
            self.lowest = smoothed
        if self.highest is None or smoothed.value > self.highest.value:
            self.highest = smoothed

    @property
    def value(self) -> float | None:
        """Smoothed; None before the first step, and the last loss itself where that is not finite."""
        if self._last_step < 0:
            return None
        return self._sum / self._weight if math.isfinite(self._last) and self._weight else self._last

    @property
    def last_step(self) -> int:
        """The step of the last loss; -1 before the first."""
        return self._last_step
