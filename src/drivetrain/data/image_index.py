"""Which image files a folder holds, of which class, in which split: found fast, kept small."""

from __future__ import annotations

import hashlib
import itertools
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from drivetrain.data.permutation import Int64
from drivetrain.spec.errors import InputError

Split = Literal["train", "val"]

# The endings torchvision's ImageFolder takes. What a file holds is found out from its content, when decoded.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_DEFAULT_VAL_FRACTION = 0.1


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


def scan(
    path: str | os.PathLike[str], split: Split, *, val_fraction: float | None = None
) -> ImageFolderIndex:
    """Lists the images of one split below `path`, in the order of class and file names.

    Two layouts: `path`/train/CLASS/… and `path`/val/CLASS/…; or `path`/CLASS/…, of which the share
    `val_fraction` (None: 0.1) is held out for "val". Which files are held out follows from a hash of each
    one's path below `path`: adding files moves no other file from one side to the other. Folders inside a
    class folder, and links, are followed; names that begin with a dot are left out.

    Raises:
        InputError: nothing usable is there; a class folder in train/ is empty (its class could not be
            learnt), or one is only in val/; `val_fraction` is given where there are train/ and val/.
    """
    folder = Path(path)
    entries = _folders_in(folder)
    if "train" in entries or "val" in entries:
        if val_fraction is not None:
            raise InputError(
                f"--data.val-fraction {val_fraction}",
                f"{folder} already has train/ and val/",
                "leave it out, or point --data.path at one folder of class folders",
            )
        return _scan_split_folders(folder, split, entries)
    if not 0.0 <= (fraction := _DEFAULT_VAL_FRACTION if val_fraction is None else val_fraction) < 1.0:
        raise InputError(f"--data.val-fraction {fraction}", "it is a share", "give a number from 0 up to 1")
    return _build(folder, split, _classes(folder, entries), fraction)


def _scan_split_folders(folder: Path, split: Split, entries: list[str]) -> ImageFolderIndex:
    for needed in ("train", split):
        if needed not in entries:
            others = ", ".join(f"{name}/" for name in entries[:8])
            raise InputError(
                f"the {needed} images of {folder}",
                f"there is no folder {needed}/ in it, only {others}",
                f"make {folder / needed} (a link will do), or point --data.path at one folder of class"
                " folders, of which a part is held out",
            )
    classes = _classes(folder / "train", _folders_in(folder / "train"))
    if split == "train":
        return _build(folder / "train", "train", classes, None)
    in_val = _classes(folder / "val", _folders_in(folder / "val"))
    only_in_val = sorted(set(in_val) - set(classes))
    if only_in_val:
        raise InputError(
            f"the val images of {folder}",
            f"{_some(only_in_val)} in val/ but not in train/, so no class of the model means it",
            f"add {folder / 'train' / only_in_val[0]}, or remove {folder / 'val' / only_in_val[0]}",
        )
    return _build(folder / "val", "val", classes, None, missing=set(classes) - set(in_val))


def _build(
    root: Path, split: Split, classes: list[str], val_fraction: float | None, missing: Iterable[str] = ()
) -> ImageFolderIndex:
    names, ends, class_ends = bytearray(), array("q"), array("q")
    num_left_out, empty = 0, []
    for name in classes:
        others: list[str] = []
        files = [] if name in missing else sorted(_files_below(root, name, others), key=os.fsencode)
        num_left_out += len(others)
        if not files and not (split == "val" and val_fraction is None):
            raise _class_without_images(root, name, others)
        if val_fraction is not None:
            files = [file for file in files if (split == "val") == _is_held_out(file, val_fraction)]
        if not files:
            empty.append(name)
        for file in files:
            names += os.fsencode(file)
            ends.append(len(names))
        class_ends.append(len(ends))
    if not ends:
        raise InputError(
            f"the {split} images of {root}",
            f"none of the images of its {len(classes)} classes is among them",
            "add images" if val_fraction is None else "change --data.val-fraction",
        )
    notes = []
    if num_left_out:
        notes.append(f"{num_left_out} files in {root} are left out: their names do not end as an image's")
    if empty:
        notes.append(f"no {split} image in {root}: {_some(empty)}")
    return ImageFolderIndex(
        root=root,
        split=split,
        classes=tuple(classes),
        notes=tuple(notes),
        _names=bytes(names),
        _ends=np.array(ends, dtype=np.int64),
        _class_ends=np.array(class_ends, dtype=np.int64),
    )


def _classes(root: Path, folders: list[str]) -> list[str]:
    if not folders:
        found = next(iter(_entries(root)), None)
        raise InputError(
            f"the images of {root}",
            "the folder is empty"
            if found is None
            else f"it holds no class folders, only files such as {found.name}",
            f"put the images of each class into a folder of its own: {root / 'CLASS' / 'image.jpg'}",
        )
    return folders


def _folders_in(root: Path) -> list[str]:
    """Names of the folders in `root`, sorted; hidden ones left out (.ipynb_checkpoints, .cache)."""
    if not root.exists():
        raise InputError(
            f"the images of {root}",
            "there is no such folder" if not root.is_symlink() else "it is a link to nothing",
            "check --data.path",
        )
    if not root.is_dir():
        raise InputError(f"the images of {root}", "it is a file", "give the folder, unpacked, as --data.path")
    return sorted((entry.name for entry in _entries(root) if entry.is_dir()), key=os.fsencode)


def _files_below(root: Path, class_name: str, others: list[str]) -> Iterator[str]:
    """Paths below `root` of the images of a class; what is no image is put into `others`."""
    pending = [(class_name, frozenset[str]())]
    while pending:
        folder, above = pending.pop()
        here = os.path.realpath(root / folder)
        if here in above:  # a link back up
            continue
        for entry in _entries(root / folder):
            relative = f"{folder}/{entry.name}"
            if entry.name.lower().endswith(EXTENSIONS) and entry.is_file():
                yield relative
            elif entry.is_dir():
                pending.append((relative, above | {here}))
            else:
                others.append(relative)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise InputError(
            f"the images of {folder}",
            f"it cannot be read: {error.strerror}",
            f"check its owner and mode: ls -ld {folder}",
        ) from error


def _is_held_out(relative_path: str, val_fraction: float) -> bool:
    digest = hashlib.blake2b(os.fsencode(relative_path), digest_size=8, person=b"drivetrain.split")
    return int.from_bytes(digest.digest(), "little") < val_fraction * 2**64


def _class_without_images(root: Path, name: str, others: list[str]) -> InputError:
    found = "it is empty" if not others else f"it holds only other files, such as {others[0]}"
    return InputError(
        f"images of the class {name} in {root / name}",
        f"{found}; the model would have a class that it cannot learn",
        f"add images ({', '.join(EXTENSIONS[:3])}, …), or remove the folder {root / name}",
    )


def _some(names: list[str], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    kind = "the class folder" if len(names) == 1 else "the class folders"
    verb = "is" if len(names) == 1 else "are"
    return f"{kind} {', '.join(itertools.islice(names, most))}{rest} {verb}"
