"""Batches that are made once and handed out again and again: data that costs nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from drivetrain.data.batch import MicroBatch, map_tensors
from drivetrain.data.position import Slots


class PreparedReader:
    """Stands for SampleReader where the data set has `prepared = True` and `prepared_batch(size) -> data`.

    Every micro-batch of one size holds the same tensors; ids and positions are those of the stream. Neither
    draw nor render runs.
    """

    def __init__(self, dataset: Any, *, pin_memory: bool) -> None:
        self._dataset = dataset
        self._pin_memory = pin_memory
        self._data: dict[int, Any] = {}

    def read(self, slots: Slots) -> MicroBatch:
        """The prepared micro-batch of this size; for no slots, one padding slot with weight 0."""
        size = max(len(slots), 1)
        if size not in self._data:
            data = self._dataset.prepared_batch(size)
            self._data[size] = map_tensors(data, Tensor.pin_memory) if self._pin_memory else data
        if not len(slots):
            nowhere = torch.full((1,), -1, dtype=torch.int64)
            return MicroBatch(
                data=self._data[size], weight=torch.zeros(1), num_valid=0.0, ids=nowhere, positions=nowhere
            )
        return MicroBatch(
            data=self._data[size],
            weight=torch.ones(size),
            num_valid=float(size),
            ids=torch.from_numpy(np.ascontiguousarray(slots.index)),
            positions=torch.from_numpy(np.ascontiguousarray(slots.position)),
        )
