"""Rates over a sliding window of steps, and over the whole run, from what each rank did in each step.

The first steps after a start (compilation, cuDNN's search, filling the prefetch queues) and steps that hold a
pause (a checkpoint, or an evaluation just before) are left out; the window takes the latter in where nothing
else is there. A rank's rate is its samples over its time; the total is the sum over all ranks, and not known
as long as one of them is not. Where nothing was measured a rate is None.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from drivetrain.spec.parts import StepPart

NUM_WARM_UP_STEPS: Final = 3
_WINDOW_STEPS: Final = 100
_WINDOW_S: Final = 30.0
_FEWEST_STEPS: Final = 10


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """One step of one rank; None where the rank could not tell."""

    samples: int | None
    step_s: float | None
    data_wait_s: float | None


@dataclass(frozen=True, kw_only=True)
class RankRates:
    samples_per_s: float | None
    data_wait_share: float | None


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates of all ranks; None is "not known (yet)".

    Attributes:
        seconds_per_step: of the slowest rank.
        num_steps: steps that the figures rest on.
    """

    per_rank: dict[int, RankRates]
    samples_per_s: float | None
    data_wait_share: float | None
    seconds_per_step: float | None
    num_steps: int


class Throughput:
    """Takes in steps of `num_ranks` ranks, twice if need be, and answers for the window and the whole."""

    def __init__(self, *, num_ranks: int, first_step: int = 1) -> None:
        self._num_ranks = num_ranks
        self._first_step = first_step
        self._windows: dict[int, OrderedDict[int, RankStep]] = {}
        self._sums: dict[int, _Sums] = {}
        self._pauses: set[int] = set()

    def add(self, rank: int, step: int, seen: RankStep) -> None:
        """A second report of the same step replaces the first while it is in the window."""
        window = self._windows.setdefault(rank, OrderedDict())
        sums = self._sums.setdefault(rank, _Sums())
        if step <= sums.last_step:
            return
        window[step] = seen
        while len(window) > _WINDOW_STEPS:
            old_step, old = window.popitem(last=False)
            sums.last_step = max(sums.last_step, old_step)
            if self._counts(old_step):
                sums.add(old)

    def pause_at(self, step: int, *, counts_in_step: bool) -> None:
        """A pause after `step`, which some of its time may have gone into, and into the next one's."""
        self._pauses.add(step + 1)
        if counts_in_step:
            self._pauses.add(step)

    def window(self) -> Rates:
        """Over the last 30 s or 100 steps, whichever is less, but at least 10 steps."""
        sums: dict[int, _Sums] = {}
        for rank, window in self._windows.items():
            usual = [(step, seen) for step, seen in window.items() if self._counts(step)]
            warm = [(step, seen) for step, seen in window.items() if not self._is_warm_up(step)]
            found = _Sums()
            for _, seen in reversed(usual or warm):
                if found.num_steps >= _FEWEST_STEPS and found.step_s >= _WINDOW_S:
                    break
                found.add(seen)
            sums[rank] = found
        return self._rates(sums)

    def whole(self) -> Rates:
        """Over all steps since the first."""
        sums: dict[int, _Sums] = {}
        for rank, window in self._windows.items():
            found = self._sums[rank].copy()
            for step, seen in window.items():
                if self._counts(step):
                    found.add(seen)
            sums[rank] = found
        return self._rates(sums)

    def _rates(self, sums: dict[int, _Sums]) -> Rates:
        per_rank = {rank: sums[rank].rates() for rank in sorted(sums)}
        speeds = [rates.samples_per_s for rates in per_rank.values() if rates.samples_per_s is not None]
        waited_s = sum(item.waited_step_s for item in sums.values())
        step_times_s = [item.step_s / item.num_steps for item in sums.values() if item.num_steps]
        wait_s = sum(item.data_wait_s for item in sums.values())
        return Rates(
            per_rank=per_rank,
            samples_per_s=sum(speeds) if len(speeds) == self._num_ranks else None,
            data_wait_share=wait_s / waited_s if waited_s > 0 else None,
            seconds_per_step=max(step_times_s, default=None),
            num_steps=max((item.num_steps for item in sums.values()), default=0),
        )

    def _is_warm_up(self, step: int) -> bool:
        return step < self._first_step + NUM_WARM_UP_STEPS

    def _counts(self, step: int) -> bool:
        return not self._is_warm_up(step) and step not in self._pauses


@dataclass
class PartSums:
    """Seconds of each part over the steps of one rank, without the first ones."""

    first_step: int = 1
    seconds: dict[StepPart, float] = field(default_factory=dict)

    def add(self, step: int, parts: dict[StepPart, float]) -> None:
        if step < self.first_step + NUM_WARM_UP_STEPS:
            return
        for part, seconds in parts.items():
            self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def shares(self) -> dict[StepPart, float]:
        """Shares of the whole, in the order of `StepPart`; empty where nothing was measured."""
        whole = sum(self.seconds.values())
        if whole <= 0:
            return {}
        return {part: self.seconds[part] / whole for part in StepPart if part in self.seconds}


@dataclass
class _Sums:
    samples: int = 0
    step_s: float = 0.0
    num_steps: int = 0
    data_wait_s: float = 0.0
    waited_step_s: float = 0.0
    last_step: int = -1

    def add(self, seen: RankStep) -> None:
        if seen.samples is None or seen.step_s is None:
            return
        self.samples += seen.samples
        self.step_s += seen.step_s
        self.num_steps += 1
        if seen.data_wait_s is not None:
            self.data_wait_s += seen.data_wait_s
            self.waited_step_s += seen.step_s

    def copy(self) -> _Sums:
        return _Sums(**vars(self))

    def rates(self) -> RankRates:
        return RankRates(
            samples_per_s=self.samples / self.step_s if self.step_s > 0 else None,
            data_wait_share=self.data_wait_s / self.waited_step_s if self.waited_step_s > 0 else None,
        )
