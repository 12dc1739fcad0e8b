"""What a lease's command and its descendants know of it: a variable with the lease's name and its files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

LEASE_VARIABLE = "DRIVETRAIN_GPU_LEASE"


def lease_variable(name: str, files: Sequence[int]) -> dict[str, str]:
    return {LEASE_VARIABLE: f"{name}:{','.join(map(str, files))}"}


def inherited_files(environ: Mapping[str, str]) -> tuple[int, ...]:
    """The lease's files that are open in this process, for it to pass on to those that shall hold it too.

    Empty without a lease, or where a process in between has closed them.
    """
    numbers = environ.get(LEASE_VARIABLE, "").partition(":")[2].split(",")
    return tuple(int(number) for number in numbers if number.isdecimal() and _is_lease(int(number)))


def _is_lease(file: int) -> bool:
    # Where they were closed, the number may by now be another file's.
    try:
        return Path(f"/proc/self/fd/{file}").readlink().name.startswith("drivetrain-gpu-GPU-")
    except OSError:
        return False


def processes_of_lease(name: str, proc: Path = Path("/proc")) -> tuple[int, ...]:
    """Those that run within a lease, whether or not they still hold its files. This user's only."""
    mark = f"{LEASE_VARIABLE}={name}:".encode()
    return tuple(int(folder.name) for folder in proc.glob("[0-9]*") if _is_marked(folder, mark))


def _is_marked(folder: Path, mark: bytes) -> bool:
    try:
        if folder.stat().st_uid != os.getuid():
            return False
        environ = (folder / "environ").read_bytes()
    except OSError:
        return False
    return any(pair.startswith(mark) for pair in environ.split(b"\0"))
