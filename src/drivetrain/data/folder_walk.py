"""A folder of class folders, read once: links are followed, never in circles; what is left out is kept."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from drivetrain.spec.errors import InputError

# The endings torchvision's ImageFolder takes. What a file holds is found out from its content, when decoded.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

# A folder whatever the path that leads to it: device and inode.
_Identity = tuple[int, int]


@dataclass(kw_only=True)
class FolderWalk:
    """Reads what lies below `root`. Names that begin with a dot are passed over (.cache, .DS_Store).

    Attributes:
        others: files that are no images by their names; paths below `root`.
        loops: links that lead back to a folder above. Followed, they would put other classes' images, or
            those held out, into a class.
        dead_links: links that lead nowhere, or to themselves.
    """

    root: Path
    others: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    dead_links: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.root.exists():
            raise InputError(
                f"the images of {self.root}",
                "there is no such folder" if not self.root.is_symlink() else "it is a link to nothing",
                "check --data.path",
            )
        if not self.root.is_dir():
            raise InputError(
                f"the images of {self.root}", "it is a file", "give the folder, unpacked, as --data.path"
            )
        # Both ways up: the root may itself be reached through a link.
        self._above = frozenset(_line_of(self.root.absolute())) | frozenset(_line_of(self.root.resolve()))

    def folders(self) -> list[str]:
        """Names of the folders in the root, sorted."""
        found = []
        for entry in _entries(self.root):
            if (identity := self._folder(entry, entry.name)) is None:
                continue
            if identity in self._above:
                self.loops.append(entry.name)
            else:
                found.append(entry.name)
        return sorted(found, key=os.fsencode)

    def any_name(self) -> str | None:
        """The name of something in the root, or None where it is empty."""
        entry = next(iter(_entries(self.root)), None)
        return None if entry is None else entry.name

    def images(self, name: str) -> list[str]:
        """Paths below the root of all images in its folder `name`, sorted; adds to what is left out."""
        return sorted(self._images(name), key=os.fsencode)

    def notes(self) -> list[str]:
        """What was left out, a sentence each."""
        notes = []
        if self.others:
            notes.append(
                f"{len(self.others)} files in {self.root} are left out: their names do not end as an image's"
            )
        for links, why in ((self.loops, "back to a folder above"), (self.dead_links, "nowhere")):
            if links:
                notes.append(
                    f"{len(links)} links in {self.root} are left out: they lead {why}, such as {links[0]}"
                )
        return notes

    def _images(self, name: str) -> Iterator[str]:
        pending = [(name, self._above | {_identity((self.root / name).stat())})]
        while pending:
            folder, above = pending.pop()
            for entry in _entries(self.root / folder):
                relative = f"{folder}/{entry.name}"
                if entry.name.lower().endswith(EXTENSIONS) and _is_file(entry):
                    yield relative
                elif (identity := self._folder(entry, relative)) is not None:
                    if identity in above:
                        self.loops.append(relative)
                    else:
                        pending.append((relative, above | {identity}))
                elif _is_file(entry) or not entry.is_symlink():
                    self.others.append(relative)

    def _folder(self, entry: os.DirEntry[str], relative: str) -> _Identity | None:
        """Which folder the entry is, or None; notes a link that leads nowhere."""
        try:
            status = entry.stat()
            return _identity(status) if entry.is_dir() else None
        except OSError:  # ENOENT, or ELOOP for a link to itself
            self.dead_links.append(relative)
            return None


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _line_of(path: Path) -> Iterator[_Identity]:
    """The folder and those above it, as far as this user may look."""
    for folder in (path, *path.parents):
        with contextlib.suppress(PermissionError):
            yield _identity(folder.stat())


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


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
