"""Which image files a folder holds, of which class, in which split: kept small."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from drivetrain.data.permutation import Int64

Split = Literal["train", "val"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFolderIndex:
    """The images of one split. About 8 bytes and its name a file, in four objects: forked workers share them
    (a list of a million strings would be copied into each worker as its reference counts change).

    Attributes:
        root: the folder that holds the class folders.
        classes: names in order; a label is the place in it.
        notes: what the user should know: files left out, classes without a validation image.
    """

    root: Path
    split: Split
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    _names: bytes
    _ends: Int64  # where each file's name ends in _names
    _class_ends: Int64  # where each class's files end

    def __len__(self) -> int:
        return len(self._ends)

    def label(self, index: int) -> int:
        """The class of image `index`, as a number."""
        return int(np.searchsorted(self._class_ends, self._checked(index), side="right"))

    def relative_path(self, index: int) -> str:
        """Its path below `root`, class folder included."""
        index = self._checked(index)
        start = int(self._ends[index - 1]) if index else 0
        return os.fsdecode(self._names[start : int(self._ends[index])])

    def path(self, index: int) -> str:
        """Its whole path."""
        # Five times as fast as Path, and run for each sample.
        return os.path.join(self.root, self.relative_path(index))  # noqa: PTH118

    def relative_paths(self) -> Iterator[str]:
        """All of them, in order."""
        return (self.relative_path(index) for index in range(len(self)))

    def count_per_class(self) -> Int64:
        """(classes,) images of each class."""
        return np.diff(self._class_ends, prepend=0)

    def sizes_bytes(self) -> Int64:
        """(images,) sizes of the files now; -1 for one that is gone. Asks the file system once a file."""
        return np.fromiter(map(self._size, range(len(self))), dtype=np.int64, count=len(self))

    def describe(self) -> str:
        """One line for the start of a run."""
        return f"{self.split}: {len(self):,} images of {len(self.classes):,} classes in {self.root}"

    def _size(self, index: int) -> int:
        try:
            return os.stat(self.path(index)).st_size  # noqa: PTH116
        except OSError:
            return -1

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        return index
