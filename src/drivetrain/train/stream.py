"""The batches of one rank, measured: the data room's stream inside a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from drivetrain.data.batch import MicroBatch, StepBatch
from drivetrain.data.fingerprint import explain_change
from drivetrain.data.stream import Stream
from drivetrain.data.workers import LoaderPlan
from drivetrain.engine.settings import RunSettings
from drivetrain.spec.batch import BatchPlan
from drivetrain.spec.parts import StepPart
from drivetrain.train.run_clock import RunClock


@dataclass(frozen=True, kw_only=True)
class StreamPlace:
    """Where a rank's stream stands and how it is cut.

    Attributes:
        start_step, start_position: steps done and samples consumed before it.
        resumed_data: the fingerprint of the data set that the checkpoint was made with, if any.
    """

    plan: BatchPlan
    data_rank: int
    device: torch.device
    start_step: int = 0
    start_position: int = 0
    resumed_data: str | None = None


@dataclass(frozen=True, kw_only=True)
class StreamSource:
    """What a stream is made of; see `drivetrain.Task` for the fields."""

    dataset: Any
    fingerprint: str
    steps: int | None
    draw: Callable[..., Any] | None
    render: Callable[..., Any] | None
    shuffle: bool
    loader: LoaderPlan
    sample_unit: str


class RunStream:
    """Iterate over it once; every batch must be stepped before the next is taken."""

    def __init__(
        self,
        source: StreamSource,
        place: StreamPlace,
        settings: RunSettings,
        clock: RunClock,
        when_started: Callable[[RunStream], None],
    ) -> None:
        self.source = source
        self.num_samples = len(source.dataset)
        self.next_step = place.start_step
        self.change: str | None = None
        self._is_stopped = False
        if place.resumed_data is not None and place.resumed_data != source.fingerprint:
            self.change = explain_change(place.resumed_data, source.fingerprint)
        self._clock = clock
        self._when_started = when_started
        self._stream = Stream(
            source.dataset,
            plan=place.plan,
            data_rank=place.data_rank,
            seed=settings.seed,
            start_position=place.start_position,
            stop_step=source.steps,
            draw=source.draw,
            render=source.render,
            on_bad_sample=settings.on_bad_sample,
            loader=source.loader,
            device=place.device,
            shuffle=source.shuffle,
        )

    def to_device(self, micro: MicroBatch) -> MicroBatch:
        """Copies a micro-batch to this rank's device, beside the computation where it is a GPU."""
        return self._stream.to_device(micro)

    def device_batches(self, step: StepBatch) -> Iterator[MicroBatch]:
        """The step's micro-batches on the device, each copied while the one before computes."""
        return self._stream.device_batches(step)

    def stop(self) -> None:
        """Yields nothing more. Called at the same step on every rank."""
        self._is_stopped = True

    def close(self) -> None:
        self._stream.close()

    def __iter__(self) -> Iterator[StepBatch]:
        self._when_started(self)
        batches = iter(self._stream)
        while not self._is_stopped and (self.source.steps is None or self.next_step < self.source.steps):
            self._clock.begin_step(self.next_step)
            batch = next(batches)
            self._clock.mark(StepPart.DATA_WAIT)
            self.next_step = batch.index + 1
            yield batch
        self._clock.pause()
