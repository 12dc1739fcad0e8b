"""The port of the job's store: bound and listening before any rank starts, so that nobody can take it."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from drivetrain.spec.errors import InputError

_LISTEN = "0A"  # TCP state in /proc/net/tcp


def listen(port: int, *, loopback_only: bool) -> socket.socket:
    """Binds `port` (0: any free one) and listens. Clients queue until a store accepts on the socket.

    Raises:
        InputError: the port is taken or may not be bound; names the process that has it, where readable.
    """
    if loopback_only:
        candidates = [(socket.AF_INET, "127.0.0.1")]
    else:
        candidates = [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]
    problem: OSError | None = None
    for family, address in candidates:
        listener: socket.socket | None = None
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((address, port))
            listener.listen(4096)
            return listener
        except OSError as error:
            if listener is not None:
                listener.close()
            problem = error
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                break
    assert problem is not None
    raise InputError(f"master port {port}", _reason(port, problem), _remedy(problem)) from problem


def owner_of(port: int) -> str | None:
    """The process that listens on `port` as "pid 12 (command line)", or None where that cannot be read."""
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if any(str(link.readlink()) in wanted for link in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                return f"pid {process.name} ({' '.join(words).strip()[:120] or '?'})"
        except OSError:  # ended meanwhile, or another user's
            continue
    return None


def is_listening(port: int) -> bool:
    """Whether this process listens on `port`."""
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for link in Path("/proc/self/fd").iterdir():
        try:
            if str(link.readlink()) in wanted:
                return True
        except OSError:  # closed meanwhile
            continue
    return False


def _reason(port: int, error: OSError) -> str:
    if error.errno != errno.EADDRINUSE:
        return f"cannot be bound on {socket.gethostname()}: {error.strerror}"
    owner = owner_of(port)
    return (
        f"already taken on {socket.gethostname()} by {owner or 'a process that this user may not look into'}"
    )


def _remedy(error: OSError) -> str:
    if error.errno == errno.EACCES:
        return "use --master-port 1024 or higher"
    return (
        "choose another --master-port (the same on every machine), or leave it out on one machine: "
        "then a free one is taken; or end the process that has it"
    )


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes
