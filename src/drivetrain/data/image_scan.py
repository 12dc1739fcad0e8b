"""Which image files below a folder are for training and which for evaluation."""

from __future__ import annotations

import hashlib
import itertools
import os
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from drivetrain.data.folder_walk import EXTENSIONS, FolderWalk
from drivetrain.data.image_index import ImageFolderIndex, Split
from drivetrain.spec.errors import InputError

_DEFAULT_VAL_FRACTION = 0.1


def scan_both(
    path: str | os.PathLike[str], *, val_fraction: float | None = None
) -> tuple[ImageFolderIndex, ImageFolderIndex]:
    """Lists the images for training and those for evaluation, in the order of class and file names. Every
    folder is read once.

    Two layouts: `path`/train/CLASS/… and `path`/val/CLASS/…; or `path`/CLASS/…, of which the share
    `val_fraction` (None: 0.1) is held out for evaluation. Which files are held out follows from a hash of
    each one's path below `path`: adding files moves no other file from one side to the other. Folders inside
    a class folder, and links, are followed, except for links back to a folder above; names that begin with a
    dot are left out.

    Raises:
        InputError: nothing usable is there; a class folder in train/ is empty (its class could not be
            learnt), or one is only in val/; `val_fraction` is given where there are train/ and val/.
    """
    train, val = _scan(Path(path), ("train", "val"), val_fraction)
    return train, val


def scan(
    path: str | os.PathLike[str], split: Split, *, val_fraction: float | None = None
) -> ImageFolderIndex:
    """One of the two that `scan_both` lists."""
    return _scan(Path(path), (split,), val_fraction)[0]


def _scan(folder: Path, splits: tuple[Split, ...], val_fraction: float | None) -> list[ImageFolderIndex]:
    walk = FolderWalk(root=folder)
    entries = walk.folders()
    if "train" in entries or "val" in entries:
        if val_fraction is not None:
            raise InputError(
                f"--data.val-fraction {val_fraction}",
                f"{folder} already has train/ and val/",
                "leave it out, or point --data.path at one folder of class folders",
            )
        return _scan_split_folders(folder, splits, entries)
    if not 0.0 <= (fraction := _DEFAULT_VAL_FRACTION if val_fraction is None else val_fraction) < 1.0:
        raise InputError(f"--data.val-fraction {fraction}", "it is a share", "give a number from 0 up to 1")
    classes = _classes(walk, entries)
    builders = {split: _Builder() for split in splits}
    for name in classes:
        files = _images_of_class(walk, name)
        for split, builder in builders.items():
            builder.add_class(file for file in files if (split == "val") == _is_held_out(file, fraction))
    return [
        builder.index(walk, split, classes, if_none="change --data.val-fraction")
        for split, builder in builders.items()
    ]


def _scan_split_folders(
    folder: Path, splits: tuple[Split, ...], entries: list[str]
) -> list[ImageFolderIndex]:
    for needed in ("train", *splits):
        if needed not in entries:
            others = ", ".join(f"{name}/" for name in entries[:8])
            raise InputError(
                f"the {needed} images of {folder}",
                f"there is no folder {needed}/ in it, only {others}",
                f"make {folder / needed} (a link will do), or point --data.path at one folder of class"
                " folders, of which a part is held out",
            )
    train = FolderWalk(root=folder / "train")
    classes = _classes(train, train.folders())
    return [
        _train_index(train, classes) if split == "train" else _val_index(folder, classes) for split in splits
    ]


def _train_index(walk: FolderWalk, classes: list[str]) -> ImageFolderIndex:
    builder = _Builder()
    for name in classes:
        builder.add_class(_images_of_class(walk, name))
    return builder.index(walk, "train", classes, if_none="add images")


def _val_index(folder: Path, classes: list[str]) -> ImageFolderIndex:
    walk = FolderWalk(root=folder / "val")
    in_val = _classes(walk, walk.folders())
    only_in_val = sorted(set(in_val) - set(classes))
    if only_in_val:
        raise InputError(
            f"the val images of {folder}",
            f"{_some(only_in_val)} in val/ but not in train/, so no class of the model means it",
            f"add {folder / 'train' / only_in_val[0]}, or remove {folder / 'val' / only_in_val[0]}",
        )
    builder = _Builder()
    for name in classes:
        builder.add_class(walk.images(name) if name in in_val else ())
    return builder.index(walk, "val", classes, if_none="add images")


class _Builder:
    """Collects the files of one split, class by class."""

    def __init__(self) -> None:
        self._names = bytearray()
        self._ends = array("q")
        self._class_ends = array("q")

    def add_class(self, files: Iterable[str]) -> None:
        for file in files:
            self._names += os.fsencode(file)
            self._ends.append(len(self._names))
        self._class_ends.append(len(self._ends))

    def index(self, walk: FolderWalk, split: Split, classes: list[str], *, if_none: str) -> ImageFolderIndex:
        if not self._ends:
            raise InputError(
                f"the {split} images of {walk.root}",
                f"none of the images of its {len(classes)} classes is among them",
                if_none,
            )
        class_ends = np.array(self._class_ends, dtype=np.int64)
        counts = np.diff(class_ends, prepend=0)
        empty = [name for name, count in zip(classes, counts.tolist(), strict=True) if count == 0]
        notes = walk.notes()
        if empty:
            notes.append(f"no {split} image in {walk.root}: {_some(empty)}")
        return ImageFolderIndex(
            root=walk.root,
            split=split,
            classes=tuple(classes),
            notes=tuple(notes),
            _names=bytes(self._names),
            _ends=np.array(self._ends, dtype=np.int64),
            _class_ends=class_ends,
        )


def _classes(walk: FolderWalk, folders: list[str]) -> list[str]:
    if not folders:
        name = walk.any_name()
        raise InputError(
            f"the images of {walk.root}",
            "the folder is empty"
            if name is None
            else f"it holds no class folders, only files such as {name}",
            f"put the images of each class into a folder of its own: {walk.root / 'CLASS' / 'image.jpg'}",
        )
    return folders


def _images_of_class(walk: FolderWalk, name: str) -> list[str]:
    """Raises InputError where there are none."""
    num_others = len(walk.others)
    files = walk.images(name)
    if files:
        return files
    others = walk.others[num_others:]
    found = "it is empty" if not others else f"it holds only other files, such as {others[0]}"
    raise InputError(
        f"images of the class {name} in {walk.root / name}",
        f"{found}; the model would have a class that it cannot learn",
        f"add images ({', '.join(EXTENSIONS[:3])}, …), or remove the folder {walk.root / name}",
    )


def _is_held_out(relative_path: str, val_fraction: float) -> bool:
    digest = hashlib.blake2b(os.fsencode(relative_path), digest_size=8, person=b"drivetrain.split")
    return int.from_bytes(digest.digest(), "little") < val_fraction * 2**64


def _some(names: list[str], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    kind = "the class folder" if len(names) == 1 else "the class folders"
    verb = "is" if len(names) == 1 else "are"
    return f"{kind} {', '.join(itertools.islice(names, most))}{rest} {verb}"
