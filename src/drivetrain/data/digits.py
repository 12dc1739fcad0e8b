"""The UCI handwritten digits that scikit-learn ships: a real data set of 1,797 images, no download."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drivetrain.data.permutation import KeyedPermutation
from drivetrain.spec.errors import InputError

_BRIGHTEST = 16.0  # each pixel counts the dark ones among 4 × 4 of the scan


class Digits:
    """`dataset[i]` is (float32 (1, 8, 8) in [0, 1], label 0 … 9); all of it in memory.

    Args:
        split: "val" is the share `val_fraction` of each class, chosen by `seed`; "train" is the rest.
    """

    num_classes = 10

    def __init__(self, split: Literal["train", "val"], *, seed: int = 0, val_fraction: float = 0.2) -> None:
        if not 0.0 < val_fraction < 1.0:
            raise InputError(
                f"digits with val_fraction {val_fraction}",
                "it is the share held out",
                "give a number between 0 and 1, such as 0.2",
            )
        pixels, labels = _load()
        chosen = _split(labels, split, seed, val_fraction)
        self.images = torch.from_numpy(pixels[chosen]).view(-1, 1, 8, 8)
        self.labels: list[int] = labels[chosen].tolist()
        self.fingerprint = f"digits-{split}-{len(self.labels)}-{seed}-{val_fraction}"

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], self.labels[index]


class DigitsAugment:
    """Moves the digit by at most `most` pixels up, down, left or right; what comes in is 0."""

    def __init__(self, most: int = 1) -> None:
        self.most = most

    def draw(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """(2,) int64: pixels down, pixels right."""
        return generator.integers(-self.most, self.most + 1, size=2)

    def render(self, sample: Any, params: NDArray[np.int64]) -> Any:
        """`sample` (image (…, H, W), …) with the image moved; the rest as it is."""
        image = sample[0]
        down, right = params.tolist()
        height, width = image.shape[-2:]
        moved = torch.zeros_like(image)
        moved[..., max(down, 0) : height + min(down, 0), max(right, 0) : width + min(right, 0)] = image[
            ..., max(-down, 0) : height + min(-down, 0), max(-right, 0) : width + min(-right, 0)
        ]
        return (moved, *sample[1:])


def _split(labels: NDArray[np.int64], split: str, seed: int, val_fraction: float) -> NDArray[np.int64]:
    """Indices of the split, in order; each class gives its own share."""
    chosen = []
    for label in range(Digits.num_classes):
        members = np.flatnonzero(labels == label)
        members = members[KeyedPermutation(len(members), (seed, label))(np.arange(len(members)))]
        num_val = round(len(members) * val_fraction)
        chosen.append(members[:num_val] if split == "val" else members[num_val:])
    return np.sort(np.concatenate(chosen))


def _load() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(1797, 64) float32 in [0, 1] and (1797,) int64."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise InputError(
            "the data set digits",
            "scikit-learn, which ships it, is not installed",
            "pip install 'drivetrain[digits]'",
        )
    # Its file is read directly, since importing sklearn.datasets takes each rank about a second.
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.exists():
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
        pixels, labels = table[:, :64], table[:, 64]
    else:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
    return np.ascontiguousarray(pixels, dtype=np.float32) / np.float32(_BRIGHTEST), labels.astype(np.int64)
