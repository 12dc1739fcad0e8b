"""Every sample of a data set exactly once, over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from drivetrain.data.bad_samples import OnBadSample
from drivetrain.data.batch import MicroBatch
from drivetrain.data.device_copy import DeviceCopier
from drivetrain.data.loading import OrderedLoader, Reader
from drivetrain.data.position import SampleOrder, Slots
from drivetrain.data.reader import Collate, MapDataset, Render, SampleReader
from drivetrain.data.stream import check_map_style, check_reading
from drivetrain.data.workers import LoaderPlan


class EvalLoader:
    """Yields this rank's micro-batches on the host; iterating again starts anew.

    Rank r of R takes samples r, r + R, r + 2R, …: shares differ by at most one, and in a folder sorted by
    class no rank gets only the largest images. A rank's share may be empty.

    All ranks yield equally many micro-batches, since some strategies communicate in the forward pass: where a
    rank has no sample left, it yields one padding slot with weight 0 and id -1. Metrics must honour `weight`.

    Args:
        batch: the most samples in a micro-batch.
        render: `render(sample, None) -> sample`.
        seed: of the random transforms in `dataset[i]`, should there be any.
        on_bad_sample: see Stream.
    """

    def __init__(
        self,
        dataset: MapDataset,
        *,
        batch: int,
        rank: int = 0,
        num_ranks: int = 1,
        render: Render | None = None,
        collate: Collate | None = None,
        loader: LoaderPlan | None = None,
        device: torch.device | None = None,
        on_bad_sample: OnBadSample = "fail",
        seed: int = 0,
    ) -> None:
        check_map_style(dataset)
        check_reading(None, render, on_bad_sample)
        assert 0 <= rank < num_ranks, f"rank {rank} of {num_ranks}"
        assert batch >= 1, f"an evaluation batch of {batch}"
        self._dataset = dataset
        self._batch = batch
        self._rank = rank
        self._num_ranks = num_ranks
        self._plan = loader or LoaderPlan()
        self._order = SampleOrder(len(dataset), seed, shuffle=False)
        self._copier = DeviceCopier(device or torch.device("cpu"))

        def make_reader(stopping: Callable[[], bool]) -> Reader:
            return SampleReader(
                dataset,
                seed=seed,
                render=render,
                collate_with=collate,
                on_bad_sample=on_bad_sample,
                stopping=stopping,
            )

        self._make_reader = make_reader

    def __len__(self) -> int:
        """Micro-batches in one pass, the same on every rank."""
        largest_share = -(-len(self._dataset) // self._num_ranks)
        return -(-largest_share // self._batch)

    @property
    def num_samples(self) -> int:
        """Samples of the data set, over all ranks."""
        return len(self._dataset)

    def __iter__(self) -> Iterator[MicroBatch]:
        loader = OrderedLoader(self._make_reader, self._slots(), self._plan)
        try:
            yield from loader
        finally:
            loader.close()

    def to_device(self, micro: MicroBatch) -> MicroBatch:
        """`micro` on the loader's device, usable in the current CUDA stream; the host does not wait."""
        return self._copier.copy(micro)

    def device_batches(self) -> Iterator[MicroBatch]:
        """One pass on the device; each micro-batch is copied while the one before computes."""
        return self._copier.copy_each(self)

    def _slots(self) -> Iterator[Slots]:
        stride = self._batch * self._num_ranks
        for number in range(len(self)):
            start = number * stride
            stop = min(start + stride, len(self._dataset))
            yield self._order.slots(start, stop)[self._rank :: self._num_ranks]
