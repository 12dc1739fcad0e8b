"""A run as its events tell it so far: the one fold that the live display and the summary share."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from drivetrain.report.last_words import LastWords
from drivetrain.report.loss import SmoothedLoss
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

_PARTS_WINDOW_STEPS: Final = 50
_MOST_MESSAGES: Final = 200


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

    Attributes:
        started: what was last announced, maybe by an earlier start; see `has_begun`.
        ended: how this start ended.
        new_eval: the last evaluation that came as an event, not from `remember`.
        expected_ranks: how many ranks are being launched, where the launcher has said so.
    """

    def __init__(self, *, expected_ranks: int | None = None) -> None:
        self.headers: dict[int, Header] = {}
        self.expected_ranks = expected_ranks
        self.started: RunStarted | None = None
        self.has_begun = False
        self.ended: RunEnded | None = None
        self.evals: list[EvalEvent] = []
        self.new_eval: EvalEvent | None = None
        self.last_words = LastWords()
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
        self.peak_lr: float | None = None
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
        return next((header.world_size for header in self.headers.values()), self.expected_ranks)

    @property
    def joined_ranks(self) -> list[int]:
        """The ranks that have found each other since the last restart."""
        newest = max((header.restart for header in self.headers.values()), default=0)
        return sorted(rank for rank, header in self.headers.items() if header.restart == newest)

    @property
    def has_trained(self) -> bool:
        """Whether this start has done a step."""
        return self.has_begun and self.step >= self.first_step

    @property
    def nothing_was_left(self) -> bool:
        """Whether this start found all steps done by an earlier one."""
        return (
            self.has_begun
            and self.started is not None
            and 0 < self.started.total_steps <= self.started.start_step
        )

    @property
    def end_status(self) -> str | None:
        """As `RunEnded.status`, or "interrupted"; None while the run has not said how it ended."""
        if self.ended is None:
            return None
        is_interrupt = self.ended.status == "failed" and self.ended.reason == "KeyboardInterrupt"
        return "interrupted" if is_interrupt else self.ended.status

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

    def remember(self, events: Iterable[Event]) -> None:
        """Takes the evaluations of earlier starts from rank 0's `events`, and nothing else."""
        for event in events:
            if isinstance(event, EvalEvent):
                self._add_eval(event)
            elif isinstance(event, RunStarted):
                self._forget_evals_after(event.start_step)

    def apply(self, event: Event) -> None:
        self.last_words.add(event)
        match event:
            case Header():
                self._apply_header(event)
            case RunStarted() if event.rank == self.lead_rank:
                self._apply_started(event)
            case StepEvent():
                self._apply_step(event)
            case ClusterStep():
                self._apply_cluster(event)
            case EvalEvent():
                self._add_eval(event)
                self.new_eval = event
                self._advance_to(event.step)
                self.eval_s += event.seconds
                self.throughput.pause_at(event.step, counts_in_step=False)
            case CheckpointEvent():
                self.checkpoint = event
                self._advance_to(event.step)
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

    def _apply_header(self, event: Header) -> None:
        self.headers[event.rank] = event
        if event.rank != self.lead_rank:
            return
        self.headers = {rank: header for rank, header in self.headers.items() if rank < event.world_size}
        self.has_begun = False
        self.ended = None

    def _add_eval(self, event: EvalEvent) -> None:
        self.evals = [*(item for item in self.evals if item.step < event.step), event]

    def _forget_evals_after(self, step: int) -> None:
        self.evals = [item for item in self.evals if item.step <= step]

    def _advance_to(self, step: int) -> None:
        """An evaluation or a checkpoint proves steps done whose own events are still on their way."""
        if self.started is not None and self.position is not None and step > self.step:
            self.position += (step - self.step) * self.started.global_batch
        self.step = max(self.step, step)

    def _apply_started(self, event: RunStarted) -> None:
        self.started = event
        self.has_begun = True
        self.ended = None
        self._forget_evals_after(event.start_step)
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
        if event.step >= self.step:
            self.step, self.position = event.step, event.position
        self.loss.add(event.step, event.loss)
        if event.lr is not None:
            self.lr = event.lr
            self.peak_lr = max(event.lr, self.peak_lr or 0.0)
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
