"""Runs one command on leased GPUs, and keeps the time.

The command and what it starts inherit the lease's files, so that the GPUs stay theirs should this process be
killed. What a command starts with its files closed (Python's subprocess does so, and torchrun) holds no part
of the lease, only the command does; `drivetrain launch` passes them on to its ranks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from drivetrain.hardware.leases.holder import span
from drivetrain.hardware.leases.inherited import processes_of_lease
from drivetrain.hardware.leases.inheritors import inheritors
from drivetrain.hardware.leases.take import Lease
from drivetrain.hardware.processes import process_facts
from drivetrain.launch.environment import launcher_environment
from drivetrain.spec.errors import InputError
from drivetrain.spec.exit_codes import exit_code_for_signal

# From the keyboard the kernel sends these to the whole foreground group, the command included.
_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_WARN_BEFORE_S = 300.0
_LOOK_S = 0.1
# After SIGKILL only a process stuck in the kernel is still there.
_KILL_WAIT_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Expiry:
    """When the lease's time is over. `is_ending`: the command is then told to end, and is killed `grace_s`
    later; else it goes on, and that the time is over is only said."""

    for_s: float
    is_ending: bool = False
    grace_s: float = 30.0


def run_leased(
    lease: Lease,
    command: tuple[str, ...],
    *,
    expiry: Expiry | None = None,
    environment: dict[str, str] | None = None,
    note: Callable[[str], None],
) -> int:
    """Runs `command` to its end with the lease's GPUs visible; returns its exit code (128+n after a signal).

    Call it from the main thread. The lease's files are closed when it returns: the lease is then at an end,
    or held by what the command left running, which is said.

    Raises:
        InputError: there is no such program.
    """
    started_s = time.monotonic()
    with _Signals() as signals:
        try:
            process = subprocess.Popen(
                command,
                env={**launcher_environment(), **lease.environment(), **(environment or {})},
                pass_fds=lease.files,
            )
        except OSError as error:
            lease.close()
            raise InputError(
                f"the program {command[0]!r}", f"it cannot be run: {error.strerror}", "check its path"
            ) from error
        signals.pass_on_to(process.pid)
        _wait(process, lease, expiry, started_s, note)
    lease.close()
    _say_who_is_left(lease, note)
    code = process.returncode
    return code if code >= 0 else exit_code_for_signal(-code)


def _wait(
    process: subprocess.Popen[bytes],
    lease: Lease,
    expiry: Expiry | None,
    started_s: float,
    note: Callable[[str], None],
) -> None:
    if expiry is not None:
        over_s = started_s + expiry.for_s
        warn_s = over_s - min(_WARN_BEFORE_S, expiry.for_s / 10)
        if not _ends_by(process, warn_s):
            then = "the command will be ended" if expiry.is_ending else "the command will go on"
            note(f"the lease is over in {span(max(0.0, over_s - time.monotonic()))}; {then}")
        if not _ends_by(process, over_s):
            if expiry.is_ending:
                note(
                    f"the lease is over after {span(expiry.for_s)}: the command gets SIGTERM,"
                    f" and SIGKILL in {span(expiry.grace_s)}"
                )
                _end(process, lease, expiry.grace_s, note)
            else:
                note(f"the lease is over after {span(expiry.for_s)}; the command goes on, and keeps its GPUs")
    process.wait()


def _ends_by(process: subprocess.Popen[bytes], deadline_s: float) -> bool:
    """Whether the command has ended at that time (of the monotonic clock)."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline_s - time.monotonic()))
    return process.returncode is not None


def _end(process: subprocess.Popen[bytes], lease: Lease, grace_s: float, note: Callable[[str], None]) -> None:
    """First the command alone, which may have workers to end in order; then whoever is left of the lease."""
    deadline_s = time.monotonic() + grace_s
    process.terminate()
    if _ends_by(process, deadline_s):
        _signal(_members(lease), signal.SIGTERM)
        while _members(lease) and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
    if process.poll() is None:
        process.kill()
    deadline_s = time.monotonic() + _KILL_WAIT_S
    while (left := _members(lease)) and time.monotonic() < deadline_s:
        _signal(left, signal.SIGKILL)
        time.sleep(_LOOK_S)
    if not _ends_by(process, deadline_s):
        note(f"the command (pid {process.pid}) does not end by SIGKILL: it is stuck in the kernel")


def _holders(lease: Lease) -> set[int]:
    return {pid for path in lease.paths for pid in inheritors(path)} - {os.getpid()}


def _members(lease: Lease) -> set[int]:
    """Those that hold the lease, and those that were started within it and do not."""
    return _holders(lease) | set(processes_of_lease(lease.name)) - {os.getpid()}


def _signal(pids: Iterable[int], signum: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def _say_who_is_left(lease: Lease, note: Callable[[str], None]) -> None:
    holders = _holders(lease)
    others = _members(lease) - holders
    if holders:
        note(f"the command left running {_names(holders)}: the GPUs stay leased until that ends too")
    if others:
        note(f"the command left running {_names(others)}, which holds no part of the lease")


def _names(pids: set[int]) -> str:
    return ", ".join(f"pid {pid} ({process_facts(pid).command})" for pid in sorted(pids))


class _Signals:
    """Passes signals on to the command; what comes before it has started, once it has.

    What this process was told to ignore (nohup), the command ignores too.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        self._early: list[int] = []
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        for signum in (*_KEYBOARD, *_PASSED_ON):
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._earlier[signum] = signal.signal(signum, self._pass_on)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._earlier.items():
            signal.signal(signum, handler)

    def pass_on_to(self, pid: int) -> None:
        self._pid = pid
        for signum in self._early:
            _signal((pid,), signum)

    def _pass_on(self, signum: int, _frame: FrameType | None) -> None:
        if self._pid is None:
            self._early.append(signum)
        elif not (signum in _KEYBOARD and _is_in_foreground()):  # else the command has got it as well
            _signal((self._pid,), signum)


def _is_in_foreground() -> bool:
    """Whether what is typed at the controlling terminal reaches this process's group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # there is none
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
