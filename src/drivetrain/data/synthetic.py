"""Images made from nothing but their index, for measuring and for trying a set-up."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from drivetrain.data.draw import sample_generator
from drivetrain.spec.errors import InputError

_NUM_BASES = 16


class SyntheticImages:
    """`dataset[i]` is (uint8 (3, size, size), label): noise that nothing can be learnt from.

    An image is one of a few noise images, shifted cyclically by an amount drawn from the index: a copy, not
    150,000 new random numbers. It goes through draw and render like any other.

    With `prepared`, the data costs nothing, so that a run measures the model and the communication alone: a
    Stream reads no sample, but hands out the same batch tensors again and again (made once for each size, in
    pinned memory where that is asked for, and on a GPU copied only once). Neither draw nor render runs; ids
    and positions are the stream's.

    Args:
        size: pixels of each side, also in a prepared batch.
        num_samples: length of the data set.
    """

    def __init__(
        self, *, size: int, num_classes: int, num_samples: int, seed: int = 0, prepared: bool = False
    ) -> None:
        for name, value in (("size", size), ("num_classes", num_classes), ("num_samples", num_samples)):
            if value < 1:
                raise InputError(
                    f"synthetic images with {name} {value}", "it must be at least 1", f"set {name}"
                )
        self.size = size
        self.num_classes = num_classes
        self.num_samples = num_samples
        self.seed = seed
        self.prepared = prepared
        self._bases: Tensor | None = None

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < self.num_samples:
            raise IndexError(f"sample {index} of {self.num_samples}")
        generator = sample_generator(self.seed, 0, index)
        base, down, right = generator.integers(0, (_NUM_BASES, self.size, self.size)).tolist()
        image = torch.roll(self._noise()[base], (down, right), dims=(1, 2))
        return image, int(generator.integers(0, self.num_classes))

    def prepared_batch(self, size: int) -> tuple[Tensor, Tensor]:
        """(size, 3, H, W) uint8 and (size,) int64 labels, the first `size` samples, again from 0 where there
        are fewer."""
        # Not more than a few hundred rolls; a large batch repeats them.
        samples = [self[index % self.num_samples] for index in range(min(size, 256))]
        images = torch.stack([image for image, _ in samples])
        labels = torch.tensor([label for _, label in samples])
        repeats = -(-size // len(samples))
        return images.repeat(repeats, 1, 1, 1)[:size], labels.repeat(repeats)[:size]

    @property
    def fingerprint(self) -> str:
        return f"synthetic-{self.num_samples}-{self.size}-{self.num_classes}-{self.seed}"

    def _noise(self) -> Tensor:
        """The base images, (16, 3, size, size), made in the process that first needs them."""
        if self._bases is None:
            # An epoch that no sample is drawn for.
            generator = sample_generator(self.seed, 1, 0)
            shape = (_NUM_BASES, 3, self.size, self.size)
            self._bases = torch.from_numpy(generator.integers(0, 256, size=shape, dtype=np.uint8))
        return self._bases
