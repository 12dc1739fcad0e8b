"""Position is one integer: samples consumed since the start, over all epochs and ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drivetrain.data.permutation import Int64, KeyedPermutation
from drivetrain.spec.errors import InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class Slots:
    """Places in the stream of samples, one per element of each array (B,).

    Attributes:
        position: absolute position in the stream.
        epoch: how often the data set was gone through before.
        index: which sample of the data set stands there.
    """

    position: Int64
    epoch: Int64
    index: Int64

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, which: slice) -> Slots:
        return Slots(position=self.position[which], epoch=self.epoch[which], index=self.index[which])


class SampleOrder:
    """The order in which a data set is gone through, for ever; each epoch in another order.

    Position p is offset p % n of epoch p // n. Batches are cut from this stream, so none is ragged: a batch
    at the end of an epoch goes on with the beginning of the next.

    Args:
        num_samples: length of the data set, at least 1.
        seed: with the epoch, the key of its permutation.
        shuffle: False goes through the data set in its own order.
    """

    def __init__(self, num_samples: int, seed: int, shuffle: bool = True) -> None:
        if num_samples < 1:
            raise InputError(
                "a stream of samples",
                f"the data set has {num_samples} samples",
                "check --data.path, or the length of your data set",
            )
        self.num_samples = num_samples
        self.seed = seed
        self.shuffle = shuffle

    def slots(self, start: int, stop: int) -> Slots:
        """The slots at positions `start` … `stop - 1`: O(stop - start), wherever `start` is."""
        if not 0 <= start <= stop:
            raise ValueError(f"positions {start} to {stop}: expected 0 ≤ start ≤ stop")
        position = np.arange(start, stop, dtype=np.int64)
        epoch, index = np.divmod(position, self.num_samples)
        # One sample has one order; skipping it keeps thousands of one-sample epochs in a batch cheap.
        if self.shuffle and self.num_samples > 1:
            index = self._shuffled(epoch, index)
        return Slots(position=position, epoch=epoch, index=index)

    def _shuffled(self, epoch: Int64, offset: Int64) -> Int64:
        if not len(epoch):
            return offset
        parts = []
        for number in range(int(epoch[0]), int(epoch[-1]) + 1):
            permutation = KeyedPermutation(self.num_samples, (self.seed, number))
            parts.append(permutation(offset[epoch == number]))
        return np.concatenate(parts)
