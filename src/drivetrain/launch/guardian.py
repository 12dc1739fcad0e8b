"""A small process that ends the ranks when their launcher is gone (SIGKILL, out of memory).

Run as a file by `ranks.py`, isolated and without site packages, so that it is up within 20 ms. It reads one
command a line from its standard input, whose other end only the launcher holds:

    +PID   a rank (or the process that forks ranks) was started, leader of its own session
    -PID   that process has been reaped; its number may belong to somebody else from now on
    q      the launcher ends in order

End of file without `q` means that the launcher died: every rank still known is killed with what it started.
It also holds the lock on the run directory (launch/lock), as an inherited descriptor, until those are gone,
so that no second launcher starts among them.

PR_SET_PDEATHSIG would not do: it reaches only the rank itself and not its data loader's workers, it is tied
to the launching thread instead of the process, and setting it between fork and exec runs Python code in a
child of a threaded process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

# A process that is stuck in the kernel must not keep the run directory locked for good.
_GONE_WAIT_S = 10.0


def kill_session(leader: int) -> None:
    """SIGKILLs every process of the session that process `leader` leads, whatever its process group."""
    for _ in range(2):  # twice: a process may have forked between the listing and the kill
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
        for pid in _session_members(leader):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _session_members(leader: int) -> list[int]:
    members = []
    for name in os.listdir("/proc"):  # noqa: PTH208  pathlib would double this program's time to start
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # The command's name, in parentheses, may itself hold spaces and parentheses.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        state, session = fields[0], int(fields[3])
        if session == leader and state != b"Z":
            members.append(int(name))
    return members


def main() -> None:
    # Schedulers send USR1 and USR2 to every process of a job step.
    for signum in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    ):
        signal.signal(signum, signal.SIG_IGN)
    leaders: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            leaders.add(int(line[1:]))
        elif line.startswith("-"):
            leaders.discard(int(line[1:]))
        else:
            return
    for leader in leaders:
        kill_session(leader)
    deadline = time.monotonic() + _GONE_WAIT_S
    while any(map(_session_members, leaders)) and time.monotonic() < deadline:
        time.sleep(0.02)


if __name__ == "__main__":
    main()
