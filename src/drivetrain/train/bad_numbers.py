"""What is done about numbers that went bad: a step whose gradient is not finite, a loss that leaps."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from drivetrain.engine.control import ClusterWord

MOST_SKIPS = 10
"""Steps skipped one after the other, after which the run stops: the state, not a batch, is at fault."""
_WINDOW = 64
_FEWEST = 16
# Deviations above the median (scaled like a normal's standard deviation), and the least leap as a share.
_DEVIATIONS = 8.0
_LEAST_LEAP = 0.5


class SkippedSteps:
    """Counts steps without an update that follow each other."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def add(self, is_skipped: bool) -> bool:
        """Takes in a step; True where it is one too many."""
        self._in_a_row = self._in_a_row + 1 if is_skipped else 0
        return self._in_a_row >= MOST_SKIPS


@dataclass(frozen=True, kw_only=True)
class Spike:
    """A loss far above the usual. Steps count from 1; `rank` is where most of it came from, if anywhere."""

    step: int
    loss: float
    usual: float
    rank: int | None

    def describe(self) -> str:
        where = f", most of it on rank {self.rank}" if self.rank is not None else ""
        return f"the loss leapt to {self.loss:.4g} at step {self.step}, after {self.usual:.4g}{where}"


class SpikeWatch:
    """Tells leaps of the loss from its noise: by the median and the spread of the last steps."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=_WINDOW)

    def add(self, word: ClusterWord) -> Spike | None:
        """Takes in a step; the spike, if it is one. A run of high losses is one spike, and then usual."""
        loss = word.loss
        if not math.isfinite(loss):
            return None
        spike = None
        if len(self._losses) >= _FEWEST:
            usual = statistics.median(self._losses)
            spread = 1.4826 * statistics.median(abs(item - usual) for item in self._losses)
            leap = loss - usual
            if leap > _DEVIATIONS * spread and leap > _LEAST_LEAP * abs(usual):
                spike = Spike(step=word.step + 1, loss=loss, usual=usual, rank=_culprit(word.loss_sums))
        self._losses.append(loss)
        return spike


def _culprit(loss_sums: Sequence[float]) -> int | None:
    """The rank with more than half of the loss, where there are at least three that count."""
    total = sum(loss_sums)
    if sum(item != 0 for item in loss_sums) < 3 or not total > 0:
        return None
    rank = max(range(len(loss_sums)), key=lambda index: loss_sums[index])
    return rank if loss_sums[rank] > total / 2 else None
