"""Labels that no class of the model means: found on the host, before a device assert kills the GPU's
context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from drivetrain.data.bad_samples import source_of
from drivetrain.data.reader import MapDataset


class CheckedLabels:
    """`dataset` with each sample's label checked: an integer outside 0 … num_classes-1 makes it a bad sample.

    The label is the second of a tuple, or "y" or "label" of a dict. Labels that are not single integers (soft
    labels, masks, texts) are not checked.

    Args:
        ignore: a label outside that the loss leaves out, such as -100 for cross entropy.
    """

    def __init__(self, dataset: MapDataset, num_classes: int, *, ignore: int | None = None) -> None:
        self.dataset = dataset
        self.num_classes = num_classes
        self.ignore = ignore

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        sample = self.dataset[index]
        label = _integer(_label(sample))
        if label is not None and not 0 <= label < self.num_classes and label != self.ignore:
            raise ValueError(
                f"its label is {label}, but there are {self.num_classes} classes, 0 … {self.num_classes - 1}"
            )
        return sample

    @property
    def unwrapped(self) -> MapDataset:
        """The data set itself: checking does not make it another."""
        return self.dataset

    def source(self, index: int) -> str:
        """What the inner data set calls the sample."""
        return source_of(self.dataset, index)

    def __getattr__(self, name: str) -> Any:
        # Whatever else the data set offers (classes, fingerprint, prepared batches) it offers still.
        if name == "dataset":  # while unpickling
            raise AttributeError(name)
        return getattr(self.dataset, name)


def _label(sample: Any) -> Any:
    if isinstance(sample, (tuple, list)) and len(sample) > 1:
        return sample[1]
    if isinstance(sample, Mapping):
        return sample.get("y", sample.get("label"))
    return None


def _integer(label: Any) -> int | None:
    if isinstance(label, bool):
        return None
    if isinstance(label, (int, np.integer)):
        return int(label)
    if isinstance(label, np.ndarray) and label.ndim == 0 and np.issubdtype(label.dtype, np.integer):
        return int(label)
    is_integer = isinstance(label, Tensor) and label.ndim == 0 and not label.is_floating_point()
    return int(label) if is_integer and not label.is_complex() else None
