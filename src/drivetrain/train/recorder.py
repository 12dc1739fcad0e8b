"""Joins what the clock and the control word say about a step, late and apart, into events and metrics."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drivetrain.engine.control import ClusterWord
from drivetrain.engine.world import World
from drivetrain.spec.parts import StepPart
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import (
    ClusterStep,
    Event,
    Header,
    MessageEvent,
    RunEnded,
    SkippedSampleEvent,
    StepEvent,
)
from drivetrain.telemetry.ranks.step_clock import StepTiming
from drivetrain.telemetry.sinks.table import SinkSet
from drivetrain.telemetry.writer import EventWriter

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What this rank knows of a step as soon as it is done. `index` counts from 0."""

    index: int
    position: int
    num_samples: int
    num_skipped: int
    lr: float


class Recorder:
    """Writes this rank's events; on rank 0 also the cluster's and the metrics sinks.

    Without a run directory it only logs messages. Nothing here communicates or waits for the device.
    """

    def __init__(self, run_dir: RunDir | None, world: World, *, log_every_steps: int) -> None:
        self._world = world
        self._log_every_steps = log_every_steps
        self._started = time.monotonic()
        self._facts: dict[int, StepFacts] = {}
        self._timings: dict[int, StepTiming] = {}
        self._words: dict[int, ClusterWord] = {}
        self._sinks: SinkSet | None = None
        self._writer: EventWriter | None = None
        if run_dir is not None:
            header = Header(
                rank=world.rank,
                world_size=world.size,
                local_rank=world.env.local_rank,
                host=world.env.host,
                pid=os.getpid(),
                started_wall_s=time.time(),
                restart=world.env.restart_count,
            )
            self._writer = EventWriter(run_dir.rank_events(world.rank), header)

    def feed(self, sinks: SinkSet) -> None:
        """From now on metrics also go to `sinks`. Rank 0 only."""
        self._sinks = sinks

    def write(self, event: Event) -> None:
        if self._writer is not None:
            self._writer.write(event)

    def message(self, text: str, level: str = "info") -> None:
        """Something a person should read; every rank may say it."""
        if self._writer is None:
            _log.log(logging.WARNING if level != "info" else logging.INFO, "%s", text)
        self.write(MessageEvent(level=level, text=text))

    def skipped(self, source: str, reason: str, step: int) -> None:
        self.write(SkippedSampleEvent(source=source, reason=reason, step=step))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        if self._sinks is not None:
            self._sinks.scalars(step, values)

    def step(self, facts: StepFacts, timings: Sequence[StepTiming], words: Sequence[ClusterWord]) -> None:
        """Takes in a step just done, and whatever timings and words have come meanwhile."""
        self._facts[facts.index] = facts
        self.late(timings, words)

    def late(self, timings: Sequence[StepTiming], words: Sequence[ClusterWord]) -> None:
        """Takes in timings and words; writes the steps that are now known in full."""
        self._timings.update({timing.step: timing for timing in timings})
        for word in words:
            self._words[word.step] = word
            if self._world.rank == 0:
                self._write_cluster(word)
        for index in [i for i in self._facts if i in self._timings and i in self._words]:
            self._write_step(index)

    def end(self, status: str, step: int, reason: str = "") -> None:
        """The last event. Steps whose timing never came are written without it."""
        for index in list(self._facts):
            self._write_step(index)
        if self._sinks is not None:
            self._sinks.close()
        self.write(
            RunEnded(status=status, reason=reason, step=step, seconds=time.monotonic() - self._started)
        )
        if self._writer is not None:
            self._writer.close()

    def _write_step(self, index: int) -> None:
        facts = self._facts.pop(index)
        timing = self._timings.pop(index, None)
        word = self._words.pop(index, None)
        self.write(
            StepEvent(
                step=index + 1,
                position=facts.position,
                num_samples=facts.num_samples,
                loss=word.loss if word is not None else None,
                lr=facts.lr,
                grad_norm=word.grad_norm if word is not None else None,
                parts=timing.parts if timing is not None else {},
                step_s=timing.total_s if timing is not None else None,
                num_skipped=facts.num_skipped,
                host_data_wait_s=timing.host_parts.get(StepPart.DATA_WAIT) if timing is not None else None,
            )
        )
        if word is not None and (index + 1) % self._log_every_steps == 0:
            self.scalars(index + 1, _metrics(facts, word))

    def _write_cluster(self, word: ClusterWord) -> None:
        self.write(
            ClusterStep(
                step=word.step + 1,
                samples=word.num_samples,
                step_s=_known(word.step_s),
                data_wait_s=_known(word.data_wait_s),
                loss=word.loss,
            )
        )


def _known(values: tuple[float, ...]) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else value for value in values)


def _metrics(facts: StepFacts, word: ClusterWord) -> dict[str, float]:
    slowest_s = max(word.step_s)  # NaN before any step was timed, and so are the rates
    values: dict[str, Any] = {
        "train/loss": word.loss,
        "train/lr": facts.lr,
        "speed/samples_per_s": sum(word.num_samples) / slowest_s if slowest_s else None,
        "speed/data_wait_share": max(word.data_wait_s) / slowest_s if slowest_s else None,
        "train/grad_norm": word.grad_norm,
    }
    return {
        name: float(value) for name, value in values.items() if value is not None and not math.isnan(value)
    }
