"""Which processes hold a lease: those that have its file open with the lock. Found through /proc."""

from __future__ import annotations

import os
from pathlib import Path


def inheritors(path: Path, proc: Path = Path("/proc")) -> tuple[int, ...]:
    """Process ids of those that hold the lease on the file at `path`, as far as this user may look.

    One that has the file open without holding the lease (to look, or to wait) is none of them.
    """
    return tuple(int(folder.name) for folder in proc.glob("[0-9]*") if _holds(folder, str(path)))


def _holds(folder: Path, path: str) -> bool:
    try:
        names = os.listdir(folder / "fd")  # noqa: PTH208  no Path for each of thousands
    except OSError:  # another user's, or gone
        return False
    return any(_is_lease(folder, name, path) for name in names)


def _is_lease(folder: Path, name: str, path: str) -> bool:
    try:
        if os.readlink(folder / "fd" / name) != path:  # noqa: PTH115
            return False
        info = (folder / "fdinfo" / name).read_text()
    except OSError:
        return False
    # lock:  1: OFDLCK ADVISORY  WRITE -1 fe:00:1234 0 0   (the last two: first and last byte)
    locks = (line.split() for line in info.splitlines() if line.startswith("lock:"))
    return any(fields[2] == "OFDLCK" and fields[-2:] == ["0", "0"] for fields in locks)
