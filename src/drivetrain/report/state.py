"""A run as its events tell it so far: the one fold that the live display and the summary share."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from drivetrain.report.throughput import PartSums, RankStep, Rates, Throughput
from drivetrain.report.wording import lower_is_better, main_metric
from drivetrain.spec.parts import StepPart
from drivetrain.telemetry.events import (
    CheckpointEvent,
    ClusterStep,
    EvalEvent,
    Event,
    Header,
    MessageEvent,
    RunEnded,
    RunStarted,
    SkippedSampleEvent,
    StepEvent,
)

_SMOOTHING: Final = 0.95
_PARTS_WINDOW_STEPS: Final = 50
_MOST_MESSAGES: Final = 200


class SmoothedLoss:
    """An exponential mean without the bias of its start. A loss that is not finite is shown as it is."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._weight = 0.0
        self._last = math.nan
        self._last_step = -1

    def add(self, step: int, loss: float | None) -> None:
        """A step that came before is not taken twice (it may arrive from its rank and from the cluster)."""
        if loss is None or step <= self._last_step:
            return
        self._last, self._last_step = loss, step
        if math.isfinite(loss):
            self._sum = _SMOOTHING * self._sum + (1 - _SMOOTHING) * loss
            self._weight = _SMOOTHING * self._weight + (1 - _SMOOTHING)

    @property
    def value(self) -> float | None:
        if self._last_step < 0:
            return None
        return self._sum / self._weight if math.isfinite(self._last) and self._weight else self._last


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best value of the main metric so far, and where."""

    name: str
    value: float
    step: int


class RunState:
    """Folds events, rank by rank in order. A new `RunStarted` (restart, resume) begins anew what is counted
    since the start and forgets evaluations of steps that are done again.

    Run-wide facts are taken from the lowest rank seen: another machine may not see rank 0's file.
    """

    def __init__(self) -> None:
        self.headers: dict[int, Header] = {}
        self.started: RunStarted | None = None
        self.ended: RunEnded | None = None
        self.evals: list[EvalEvent] = []
        self.checkpoint: CheckpointEvent | None = None
        self.num_skipped = 0
        self.first_skipped: list[SkippedSampleEvent] = []
        self._num_messages_dropped = 0
        self._messages: deque[MessageEvent] = deque()
        self._begin(0)

    def _begin(self, start_step: int) -> None:
        self.step = start_step
        self.position: int | None = None
        self.loss = SmoothedLoss()
        self.lr: float | None = None
        self.grad_norm: float | None = None
        self.eval_s = 0.0
        self.checkpoint_s = 0.0
        self.first_step = start_step + 1
        self.step_s = 0.0
        self.num_steps_read = 0
        self.throughput = Throughput(num_ranks=self.world_size or 1, first_step=start_step + 1)
        self.part_sums = PartSums(first_step=start_step + 1)
        self._recent_parts: deque[StepEvent] = deque(maxlen=_PARTS_WINDOW_STEPS)
        self._cluster_seen = False

    @property
    def lead_rank(self) -> int:
        return min(self.headers, default=0)

    @property
    def world_size(self) -> int | None:
        if self.started is not None:
            return self.started.world_size
        return next((header.world_size for header in self.headers.values()), None)

    @property
    def epoch(self) -> float | None:
        if self.started is None or self.started.num_samples < 1 or self.position is None:
            return None
        return self.position / self.started.num_samples

    @property
    def last_eval(self) -> EvalEvent | None:
        return self.evals[-1] if self.evals else None

    @property
    def best(self) -> Best | None:
        """By the main metric; an evaluation that was not a number is never the best."""
        name = main_metric(list(self.evals[-1].metrics)) if self.evals else None
        if name is None:
            return None
        sign = -1 if lower_is_better(name) else 1
        values = [
            (sign * event.metrics[name], -event.step)
            for event in self.evals
            if math.isfinite(event.metrics.get(name, math.nan))
        ]
        if not values:
            return None
        value, step = max(values)
        return Best(name=name, value=sign * value, step=-step)

    @property
    def cluster_is_seen(self) -> bool:
        """Whether rank 0 tells for all ranks."""
        return self._cluster_seen

    def rates(self) -> Rates:
        return self.throughput.window()

    def eta_s(self, rates: Rates) -> float | None:
        """Seconds for the steps that are left at `rates`, without evaluations and checkpoints to come."""
        if rates.seconds_per_step is None or self.started is None:
            return None
        return rates.seconds_per_step * max(self.started.total_steps - self.step, 0)

    def recent_part_shares(self) -> dict[StepPart, float]:
        """Where the lead rank's last 50 steps went; empty where nothing was measured."""
        sums = PartSums(first_step=self.part_sums.first_step)
        for event in self._recent_parts:
            sums.add(event.step, event.parts)
        return sums.shares()

    def take_messages(self) -> list[MessageEvent]:
        """Messages that came since the last call."""
        taken = list(self._messages)
        self._messages.clear()
        if self._num_messages_dropped:
            text = f"{self._num_messages_dropped} more messages are left out here; the events have them"
            taken.append(MessageEvent(level="warning", text=text))
            self._num_messages_dropped = 0
        return taken

    def apply(self, event: Event) -> None:
        match event:
            case Header():
                self.headers[event.rank] = event
            case RunStarted() if event.rank == self.lead_rank:
                self._apply_started(event)
            case StepEvent():
                self._apply_step(event)
            case ClusterStep():
                self._apply_cluster(event)
            case EvalEvent():
                self.evals = [*(item for item in self.evals if item.step < event.step), event]
                self.eval_s += event.seconds
                self.throughput.pause_at(event.step, counts_in_step=False)
            case CheckpointEvent():
                self.checkpoint = event
                self.checkpoint_s += event.seconds
                self.throughput.pause_at(event.step, counts_in_step=True)
            case SkippedSampleEvent():
                self.num_skipped += 1
                if len(self.first_skipped) < 3:
                    self.first_skipped.append(event)
            case MessageEvent() if len(self._messages) < _MOST_MESSAGES:
                self._messages.append(event)
            case MessageEvent():
                self._num_messages_dropped += 1
            case RunEnded() if event.rank == self.lead_rank:
                self.ended = event
                self.step = max(self.step, event.step)

    def _apply_started(self, event: RunStarted) -> None:
        self.started = event
        self.ended = None
        self.evals = [item for item in self.evals if item.step <= event.start_step]
        if self.checkpoint is not None and self.checkpoint.step > event.start_step:
            self.checkpoint = None
        self._begin(event.start_step)

    def _apply_step(self, event: StepEvent) -> None:
        if not self._cluster_seen:
            seen = RankStep(
                samples=event.num_samples,
                step_s=event.step_s,
                data_wait_s=event.parts.get(StepPart.DATA_WAIT),
            )
            self.throughput.add(event.rank, event.step, seen)
        if event.rank != self.lead_rank:
            return
        self.step = max(self.step, event.step)
        self.position = event.position
        self.loss.add(event.step, event.loss)
        self.lr = event.lr if event.lr is not None else self.lr
        self.grad_norm = event.grad_norm
        if event.step_s is not None:
            self.step_s += event.step_s
            self.num_steps_read += 1
            self.part_sums.add(event.step, event.parts)
            self._recent_parts.append(event)
        if StepPart.CHECKPOINT in event.parts:
            self.throughput.pause_at(event.step, counts_in_step=True)

    def _apply_cluster(self, event: ClusterStep) -> None:
        # From here on the ranks' own files add nothing, and on several machines they may not be visible.
        self._cluster_seen = True
        for rank, (samples, step_s, wait_s) in enumerate(
            zip(event.samples, event.step_s, event.data_wait_s, strict=False)
        ):
            self.throughput.add(
                rank, event.step, RankStep(samples=samples, step_s=step_s, data_wait_s=wait_s)
            )
        self.loss.add(event.step, event.loss)
