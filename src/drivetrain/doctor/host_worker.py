"""What may hang on a dead server: names and storage, in a process of its own.

`python -m drivetrain.doctor.host_worker name` and `… storage FOLDER`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from drivetrain.doctor.child import answer

_BLOCK_BYTES = 1 << 20
_NUM_BLOCKS = 64
_LONGEST_S = 4.0


def own_addresses() -> list[str]:
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def measure_storage(folder: Path) -> dict[str, Any]:
    """Writes up to 64 MiB with fsync and reads them back past the page cache; leaves nothing behind."""
    stat = os.statvfs(folder)
    values: dict[str, Any] = {
        "folder": str(folder),
        "kind": _file_system(folder),
        "free_bytes": stat.f_bavail * stat.f_frsize,
    }
    block = os.urandom(_BLOCK_BYTES)
    try:
        descriptor, name = tempfile.mkstemp(prefix=".drivetrain-doctor-", dir=folder)
    except OSError as error:
        return {**values, "problem": f"{folder} cannot be written: {error.strerror}"}
    try:
        start = time.perf_counter()
        written = 0
        while written < _NUM_BLOCKS * _BLOCK_BYTES and time.perf_counter() - start < _LONGEST_S:
            written += os.write(descriptor, block)
        os.fsync(descriptor)
        values["write_bytes_per_s"] = written / (time.perf_counter() - start)
        # Not every file system lets go of its pages; then the read is the cache's.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(descriptor, 0, os.SEEK_SET)
        start, read = time.perf_counter(), 0
        while time.perf_counter() - start < _LONGEST_S and (got := len(os.read(descriptor, _BLOCK_BYTES))):
            read += got
        values["read_bytes_per_s"] = read / max(time.perf_counter() - start, 1e-9)
        values["read_from_cache"] = values["kind"] in ("tmpfs", "overlay", "fuse")
    except OSError as error:
        values["problem"] = f"{folder}: {error.strerror}"
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            Path(name).unlink()
    return values


def _file_system(folder: Path) -> str:
    """The type of the mount that holds `folder`, by /proc/self/mountinfo; "" where it cannot be told."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = fields[4].replace("\\040", " ")
        if folder.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind


def main() -> None:
    if sys.argv[1] == "name":
        answer({"addresses": own_addresses()})
    else:
        answer(measure_storage(Path(sys.argv[2])))


if __name__ == "__main__":
    main()
