"""One launcher at a time for a run directory: a lock, which the kernel releases with the last that holds it.

Held by the launcher and by its guardian, which outlives a killed launcher until the ranks are gone. The ranks
themselves do not inherit it: what one leaves running on purpose would keep the directory locked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from drivetrain.launch.check import Rendezvous, rendezvous_of
from drivetrain.launch.proc import is_exiting
from drivetrain.spec.errors import InputError
from drivetrain.spec.job import LaunchRequest
from drivetrain.spec.run_dir import RunDir

# File systems without locks (some network ones): the run goes on unguarded.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_LOOK_S = 0.05
# How long a killed launcher's ranks are waited for: what its guardian gives them, and a little more.
_GONE_WAIT_S = 12.0


@contextmanager
def hold_folder(request: LaunchRequest) -> Iterator[int]:
    """Holds the run directory of `request` while the block runs; gives the lock's descriptor.

    Machines that share the directory hold a lock each. Where the rendezvous will number them, they share one:
    two such jobs do not exclude each other.

    Raises:
        InputError: another launcher holds it (its host and process are named), or it cannot be written.
    """
    path = RunDir(request.folder).launch / _name(request)
    how = fcntl.LOCK_SH if rendezvous_of(request) is Rendezvous.C10D else fcntl.LOCK_EX
    deadline = time.monotonic() + _GONE_WAIT_S
    while (file := _try_to_hold(path, how)) is None:
        holder = _holder(path)
        if not holder.is_dead or time.monotonic() > deadline:
            raise InputError(
                f"output {request.folder}",
                f"another launcher is at work there: {holder}",
                "wait until it has ended, or choose another --output",
            )
        time.sleep(_LOOK_S)
    try:
        yield file
    finally:
        os.close(file)


def _name(request: LaunchRequest) -> str:
    is_first = rendezvous_of(request) is not Rendezvous.STATIC or request.node_rank == 0
    return "lock" if is_first else f"lock-node-{request.node_rank:05d}"


def _try_to_hold(path: Path, how: int) -> int | None:
    """The descriptor of the locked file, or None where another process holds it."""
    try:
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if not _lock(file, how):
                os.close(file)
                return None
            if _is_still_at(path, file):
                break
            os.close(file)  # the one who held it until now has removed the directory
    except OSError as error:
        raise InputError(
            f"output {path.parent.parent}",
            f"cannot be written on {socket.gethostname()}: {error.strerror}",
            "choose another with --output",
        ) from error
    _sign(file)
    return file


def _lock(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return True


def _is_still_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(file), path.stat())
    except FileNotFoundError:
        return False


def _sign(file: int) -> None:
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, f"{socket.gethostname()} {os.getpid()}\n".encode(), 0)
    except OSError:
        return  # a full disk: the lock holds without a name


@dataclass(frozen=True, kw_only=True)
class _Holder:
    """Who holds the lock, as the file says. It may be unsigned, or still signed by an earlier one."""

    host: str
    pid: int

    @property
    def is_dead(self) -> bool:
        """Whether it was on this host and is no more. Unknown counts as alive."""
        return self.host == socket.gethostname() and is_exiting(self.pid)

    def __str__(self) -> str:
        if not self.host:
            return "which one is not known"
        ranks = ", killed, but some of its ranks have not ended" if self.is_dead else ""
        return f"pid {self.pid} on {self.host}{ranks}"


def _holder(path: Path) -> _Holder:
    try:
        host, pid = path.read_text().split()
        return _Holder(host=host, pid=int(pid))
    except (OSError, ValueError):
        return _Holder(host="", pid=0)
