"""Locks on single bytes of a file that belong to the open file, not to the process (Linux 3.15, fcntl(2)).

A child inherits them with the descriptor, and they end when the last copy of it is closed, however its
holders died. Unlike flock(2) they can be looked at without being taken, so that looking disturbs nobody.
"""

from __future__ import annotations

import errno
import fcntl
import struct

from drivetrain.hardware.leases.error import LeaseError

# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid, padded to 32 bytes.
_FLOCK = struct.Struct("@hhqqi4x")


def try_lock(file: int, byte: int) -> bool:
    """Locks `byte` for `file`, which must be open for writing; False where another open file holds it."""
    try:
        _fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, byte, 1, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def unlock(file: int, byte: int) -> None:
    """For every process that shares the open file."""
    _fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, byte, 1, 0))


def locked_elsewhere(file: int, first: int, last: int) -> list[int]:
    """Which of the bytes from `first` to `last` other open files hold, in order. Takes nothing."""
    found: list[int] = []
    _look(file, first, last, found)
    return sorted(found)


def _look(file: int, first: int, last: int, found: list[int]) -> None:
    # The kernel names any one lock in the range; what lies on either side of it is asked for in turn.
    while first <= last:
        ask = _FLOCK.pack(fcntl.F_WRLCK, 0, first, last - first + 1, 0)
        kind, _, start, _, _ = _FLOCK.unpack(_fcntl(file, fcntl.F_OFD_GETLK, ask))
        if kind == fcntl.F_UNLCK:
            return
        found.append(start)
        _look(file, first, start - 1, found)
        first = start + 1


def _fcntl(file: int, command: int, lock: bytes) -> bytes:
    """Raises LeaseError where the kernel has no such locks (older gVisor) or the file system none."""
    try:
        return fcntl.fcntl(file, command, lock)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        raise LeaseError(
            "GPU leases",
            f"this kernel or file system has no locks of open files (F_OFD_SETLK: {error.strerror})",
            "set DRIVETRAIN_LEASES to a folder on a local disk; a sandbox may allow no leases at all",
        ) from error
