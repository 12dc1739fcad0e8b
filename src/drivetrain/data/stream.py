"""The endless stream of a rank's batches, from any position."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from drivetrain.data.bad_samples import OnBadSample
from drivetrain.data.batch import MicroBatch, StepBatch
from drivetrain.data.device_copy import DeviceCopier
from drivetrain.data.loading import OrderedLoader, Reader
from drivetrain.data.position import SampleOrder, Slots
from drivetrain.data.prepared import PreparedReader
from drivetrain.data.reader import Collate, Draw, MapDataset, Render, SampleReader
from drivetrain.data.workers import LoaderPlan
from drivetrain.spec.batch import BatchPlan
from drivetrain.spec.errors import InputError


class Stream:
    """Yields a StepBatch a step, for ever or up to `stop_step`.

    Global batch k is the same samples with the same parameters for any number of ranks, workers and
    micro-batches. A stream is gone through once: a second `for` goes on where the first one stopped.

    Args:
        dataset: map-style: `len(dataset)`, `dataset[i]`. See `data.reader` for what it may raise.
        plan: how the global batch is shared; each step has exactly `plan.accumulation` micro-batches.
        data_rank: which share is this process's.
        seed: with (epoch, index) it determines order and augmentation.
        start_position: samples consumed before, by all ranks: a multiple of the global batch.
        stop_step: the first step that is not yielded any more, counted from position 0; None: for ever.
        draw, render, collate: see SampleReader.
        on_bad_sample: "fail" raises BadSampleError; "skip" keeps its slot with weight 0.
        loader: worker processes and pinning.
        device: where `to_device` copies to.

    Raises:
        InputError: the data set cannot be used, or the position does not fit the global batch.
    """

    def __init__(
        self,
        dataset: MapDataset,
        *,
        plan: BatchPlan,
        data_rank: int,
        seed: int,
        loader: LoaderPlan,
        device: torch.device,
        start_position: int = 0,
        stop_step: int | None = None,
        draw: Draw | None = None,
        render: Render | None = None,
        collate: Collate | None = None,
        on_bad_sample: OnBadSample = "fail",
        shuffle: bool = True,
    ) -> None:
        check_map_style(dataset)
        check_reading(draw, render, on_bad_sample)
        assert 0 <= data_rank < plan.num_data_ranks, f"data rank {data_rank} of {plan.num_data_ranks}"
        if start_position % plan.global_batch or start_position < 0:
            raise InputError(
                f"to start at position {start_position} of the stream",
                f"it is no multiple of the global batch, {plan.global_batch} samples",
                "resume with the global batch that the checkpoint was written with",
            )
        self.plan = plan
        self.data_rank = data_rank
        self.order = SampleOrder(len(dataset), seed, shuffle)
        self.num_skipped = 0
        self._next_step = start_position // plan.global_batch
        self._stop_step = stop_step
        is_prepared = bool(getattr(dataset, "prepared", False))
        self._copier = DeviceCopier(device, reuse=is_prepared)

        def make_reader(stopping: Callable[[], bool]) -> Reader:
            if is_prepared:
                return PreparedReader(dataset, pin_memory=loader.pin_memory)
            return SampleReader(
                dataset,
                seed=seed,
                draw=draw,
                render=render,
                collate_with=collate,
                on_bad_sample=on_bad_sample,
                stopping=stopping,
            )

        # Nothing is read from a prepared data set, so there is nothing to read ahead or to pin again.
        loader_plan = LoaderPlan(reason="the batches are prepared") if is_prepared else loader
        self._loader = OrderedLoader(make_reader, self._slots(self._next_step), loader_plan)

    @property
    def position(self) -> int:
        """Samples that all ranks together consumed: what a checkpoint keeps."""
        return self._next_step * self.plan.global_batch

    @property
    def num_samples(self) -> int:
        """Samples in one epoch."""
        return self.order.num_samples

    def start(self) -> None:
        """Starts the workers before the first batch is wanted, so that they read while the model is built.
        Before CUDA is initialised is best: forking later copies the driver's mappings."""
        self._loader.start()

    def __iter__(self) -> Iterator[StepBatch]:
        return self

    def __next__(self) -> StepBatch:
        if self._stop_step is not None and self._next_step >= self._stop_step:
            self.close()
            raise StopIteration
        micro_batches = tuple(itertools.islice(self._loader, self.plan.accumulation))
        if len(micro_batches) < self.plan.accumulation:
            raise StopIteration  # closed
        step = StepBatch(
            index=self._next_step,
            position=self.position,
            micro_batches=micro_batches,
            num_samples=self.plan.global_batch,
        )
        self.num_skipped += sum(len(micro.skipped) for micro in micro_batches)
        self._next_step += 1
        return step

    def to_device(self, micro: MicroBatch) -> MicroBatch:
        """`micro` on the stream's device, usable in the current CUDA stream; the host does not wait."""
        return self._copier.copy(micro)

    def device_batches(self, step: StepBatch) -> Iterator[MicroBatch]:
        """The step's micro-batches on the device; each is copied while the one before computes."""
        return self._copier.copy_each(step.micro_batches)

    def close(self) -> None:
        """Ends the workers; the stream yields nothing more. May be called twice."""
        self._loader.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _slots(self, first_step: int) -> Iterator[Slots]:
        """This rank's micro-batches from `first_step` on, one after the other."""
        share = self.plan.share(self.data_rank)
        pieces = self.plan.micro_slices(self.data_rank)
        steps = itertools.count(first_step) if self._stop_step is None else range(first_step, self._stop_step)
        for step in steps:
            start = step * self.plan.global_batch
            slots = self.order.slots(start + share.start, start + share.stop)
            for piece in pieces:
                yield slots[piece.start - share.start : piece.stop - share.start]


def check_map_style(dataset: Any) -> None:
    """Raises InputError unless `dataset` has a length of at least 1 and `dataset[i]`.

    To be called before its length is first asked for.
    """
    name = type(dataset).__name__
    if isinstance(dataset, type):
        raise InputError(
            f"{dataset.__name__} as a data set",
            "it is the class itself, not a data set made by it",
            f"give {dataset.__name__}(…)",
        )
    missing = [part for part in ("__len__", "__getitem__") if not hasattr(dataset, part)]
    # torch's iterable ones inherit a __getitem__ that only raises.
    if missing or isinstance(dataset, IterableDataset):
        lacks = f"it has no {' and no '.join(missing)}" if missing else "it is iterable only"
        raise InputError(
            f"{name} as a data set",
            f"{lacks}: samples have no positions to be shared among ranks by",
            "give a map-style data set: len(dataset) and dataset[i]",
        )
    if len(dataset) == 0:
        raise InputError(
            f"{name} as a data set", "it has 0 samples", "check the path or the filter it is made with"
        )


def check_reading(draw: Draw | None, render: Render | None, on_bad_sample: str) -> None:
    """Raises InputError where the parts do not fit each other."""
    if draw is not None and render is None:
        raise InputError(
            "draw without render",
            "nothing would use the drawn parameters",
            "give render(sample, params) as well",
        )
    if on_bad_sample not in ("fail", "skip"):
        raise InputError(
            f"on_bad_sample {on_bad_sample!r}", "there are two ways: fail and skip", "use one of them"
        )
