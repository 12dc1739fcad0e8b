"""Restarted ranks out of a process that has everything imported: the launcher's side of `forkserver.py`."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from drivetrain.launch import guardian, proc
from drivetrain.launch.forkserver import receive, send
from drivetrain.spec.job import Pinning

_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h
# Importing everything takes 3 s on a quiet machine, and tens of seconds on a busy one. A rank that is started
# in the usual way would import the same, so waiting loses nothing.
_READY_S = 120.0
_ANSWER_S = 10.0
_LOOK_S = 0.2
# Libraries read these when they are loaded: a forked rank has what they were then.
_READ_AT_LOAD = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "LD_", "PYTHON")


class NotForkedError(RuntimeError):
    """A rank could not be forked, and must be started in the usual way."""


class AdoptedProcess:
    """A child that this process did not start itself; like `subprocess.Popen` as far as ranks need it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class RankForker:
    """One forkserver, started in the background when the first ranks are at work. Thread-safe.

    Args:
        imports: the file that names the modules that ranks import. The ranks write it when they are up: only
            then does a forkserver cost the job's start nothing.
        command: what ranks run. Only `python -u -m MODULE …` can be forked.
        environment: what all ranks have in common.
        passed_files: descriptors that each rank inherits.
        when_started: gets the forkserver's process id, for the guardian.
    """

    def __init__(
        self,
        *,
        imports: Path,
        command: Sequence[str],
        environment: Mapping[str, str],
        passed_files: tuple[int, ...],
        when_started: Callable[[int], None],
    ) -> None:
        self._imports = imports
        self._command = tuple(command)
        self._environment = dict(environment)
        self._passed_files = passed_files
        self._when_started = when_started
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._is_ready = False
        self._is_closed = threading.Event()
        self.problem: str | None = None

    def start_when_ranks_are_up(self) -> None:
        """Returns at once."""
        before = _stamp(self._imports)
        threading.Thread(target=self._watch, args=(before,), daemon=True, name="forkserver-start").start()

    def _watch(self, before: int | None) -> None:
        while (stamp := _stamp(self._imports)) is None or stamp == before:
            if self._is_closed.wait(_LOOK_S):
                return
        with self._lock:
            if not self._is_closed.is_set():
                self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        words = [sys.executable, "-u", "-m", "drivetrain.launch.forkserver", str(self._imports)]
        try:
            self._server = subprocess.Popen(
                [*words, *self._command[2:]],
                env=self._environment,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=self._passed_files,
            )
        except OSError as error:
            self.problem = f"the forkserver could not be started: {error.strerror}"
            ours.close()
            return
        finally:
            theirs.close()
        self._channel = ours
        self._when_started(self._server.pid)

    def wait_ready(self, is_over: Callable[[], bool]) -> bool:
        """Whether ranks can be forked now. Waits for a forkserver that is still importing; not for one that
        has not been started, nor after `is_over()`."""
        deadline = time.monotonic() + _READY_S
        while not is_over() and time.monotonic() < deadline:
            with self._lock:
                if self._channel is None or self._is_ready:
                    return self._is_ready
                self._hear_ready(_LOOK_S)
        return False

    def _hear_ready(self, timeout_s: float) -> None:
        assert self._channel is not None
        try:
            self._channel.settimeout(timeout_s)
            if not self._channel.recv(1, socket.MSG_PEEK):
                self._give_up("the forkserver has died")
                return
            self._channel.settimeout(_ANSWER_S)
            answer = receive(self._channel)
        except TimeoutError:
            return
        except (OSError, ValueError) as error:
            self._give_up(f"the forkserver does not answer: {error}")
            return
        if answer is None or "unfit" in answer[0]:
            self._give_up("the forkserver has died" if answer is None else answer[0]["unfit"])
        else:
            self._is_ready = True

    def fork(
        self, command: Sequence[str], environment: Mapping[str, str], log: int, pinning: Pinning | None
    ) -> AdoptedProcess:
        """Forks one rank, in a session of its own, with its output in `log`.

        Raises:
            NotForkedError: start it in the usual way.
        """
        if tuple(command[:3]) != (sys.executable, "-u", "-m") or len(command) < 4:
            raise NotForkedError("only python -u -m MODULE can be forked")
        if _at_load(environment) != _at_load(self._environment):
            raise NotForkedError(
                "variables that libraries read when they are loaded are others for this rank"
            )
        message = {
            "module": command[3],
            "arguments": list(command[4:]),
            "environment": dict(environment),
            "pinning": None if pinning is None else dataclasses.asdict(pinning),
        }
        with self._lock:
            if not self._is_ready or self._channel is None:
                raise NotForkedError(self.problem or "no forkserver is ready")
            try:
                return self._ask(message, log)
            except (OSError, ValueError, NotForkedError) as error:
                self._give_up(f"the forkserver does not answer: {error}")
                raise NotForkedError(self.problem) from error

    def _ask(self, message: dict[str, Any], log: int) -> AdoptedProcess:
        assert self._channel is not None
        self._channel.settimeout(_ANSWER_S)
        _adopt_orphans(is_wanted=True)
        try:
            send(self._channel, message, (log,))
            answer = receive(self._channel)
        finally:
            _adopt_orphans(is_wanted=False)
        if answer is None:
            raise NotForkedError("it has died")
        pid = int(answer[0]["pid"])
        if proc.parent(pid) != os.getpid():
            guardian.kill_session(pid)
            raise NotForkedError("the kernel gave the forked rank to another process")
        return AdoptedProcess(pid)

    def close(self) -> int | None:
        """Ends the forkserver, so that it keeps no memory; returns its process id, if there was one."""
        self._is_closed.set()
        with self._lock:
            return self._give_up(self.problem or "closed")

    def _give_up(self, problem: str) -> int | None:
        self.problem, self._is_ready = problem, False
        server, self._server = self._server, None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if server is None:
            return None
        guardian.kill_session(server.pid)
        server.wait()
        return server.pid


def _adopt_orphans(*, is_wanted: bool) -> None:
    """Whether the kernel gives this process its orphaned descendants, or else process 1."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0) != 0:
        raise NotForkedError(f"prctl: {os.strerror(ctypes.get_errno())}")


def _at_load(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_LOAD)}


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
