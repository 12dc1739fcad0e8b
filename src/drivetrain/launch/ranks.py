"""The rank processes of this machine: started, timed to their end, and always ended together.

Knows nothing of torch and nothing of other machines. The first rank that fails makes the others end: SIGTERM,
`grace_s`, then SIGKILL to each rank's whole session, so that data loader workers go too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drivetrain.launch import guardian, proc
from drivetrain.launch.forked import AdoptedProcess, NotForkedError, RankForker
from drivetrain.launch.guarded import Guarded
from drivetrain.launch.pinning import pinned
from drivetrain.spec.errors import InputError
from drivetrain.spec.exit_codes import ExitCode
from drivetrain.spec.job import Pinning

# Return codes of a rank that is still running, has ended well, or has saved its state as it was asked to.
_GOOD = (None, ExitCode.DONE, ExitCode.PREEMPTED)
# How long a rank may take to start listening for the signal that asks it to stop.
_LISTEN_WAIT_S = 30.0
# After SIGKILL only a process stuck in the kernel (a wedged GPU or file server) is still there.
KILL_WAIT_S = 2.0


class StoppedError(RuntimeError):
    """A rank was to be started after the launcher had been told to stop."""


@dataclass(frozen=True, kw_only=True)
class RankStart:
    """What to start: the rank's whole environment, and the files it writes to."""

    rank: int
    local_rank: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    error_file: Path
    pinning: Pinning | None = None


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How a rank ended. `returncode` is negative for a signal and None for a process that could not be ended.

    `stopped_wall_s` is when the launcher told it to end, if it was still running then; `is_killed` whether
    that went as far as SIGKILL. `log_start` is where this attempt's output begins in the log.
    """

    rank: int
    local_rank: int
    pid: int
    returncode: int | None
    ended_wall_s: float | None
    stopped_wall_s: float | None
    log: Path
    log_start: int
    error_file: Path
    is_killed: bool = False


class _Running:
    """One started rank. All fields but the first three change under the lock of its `RankProcesses`."""

    def __init__(
        self, start: RankStart, process: subprocess.Popen[bytes] | AdoptedProcess, log_start: int
    ) -> None:
        self.start = start
        self.process = process
        self.log_start = log_start
        self.returncode: int | None = None
        self.ended_wall_s: float | None = None
        self.stopped_wall_s: float | None = None
        self.is_killed = False

    def end(self) -> RankEnd:
        return RankEnd(
            rank=self.start.rank,
            local_rank=self.start.local_rank,
            pid=self.process.pid,
            returncode=self.returncode,
            ended_wall_s=self.ended_wall_s,
            stopped_wall_s=self.stopped_wall_s,
            log=self.start.log,
            log_start=self.log_start,
            error_file=self.start.error_file,
            is_killed=self.is_killed,
        )


class RankProcesses:
    """The local ranks of one job, over all its attempts. Thread-safe; call from any thread.

    Args:
        grace_s: from the first failure or a forwarded signal, until SIGKILL.
        held_files: descriptors that stay open, should the launcher be killed, until its ranks are gone.
        passed_files: descriptors that each rank inherits: its GPUs stay leased while it lives.
        failure_grace_s: as `grace_s`, from the first failure; None takes that.
    """

    def __init__(
        self,
        *,
        grace_s: float,
        held_files: tuple[int, ...] = (),
        passed_files: tuple[int, ...] = (),
        failure_grace_s: float | None = None,
    ) -> None:
        self._grace_s = grace_s
        self._failure_grace_s = grace_s if failure_grace_s is None else failure_grace_s
        self._passed_files = passed_files
        self._guarded = Guarded(held_files)
        self._forker: RankForker | None = None
        self._changed = threading.Condition()
        self._running: list[_Running] = []
        self._stopper: threading.Thread | None = None
        self._interrupted: int | None = None
        self._is_cleaned = False  # what the current attempt's ranks left behind has been killed

    @property
    def is_started(self) -> bool:
        with self._changed:
            return bool(self._running)

    @property
    def interrupted(self) -> int | None:
        """The signal that `interrupt` was called with."""
        with self._changed:
            return self._interrupted

    def pids(self) -> dict[int, int]:
        """Process id by local rank, of the current attempt."""
        with self._changed:
            return {item.start.local_rank: item.process.pid for item in self._running}

    def ends(self) -> tuple[RankEnd, ...]:
        """How the ranks of the last attempt ended, by local rank."""
        with self._changed:
            return tuple(item.end() for item in self._running)

    def fork_from(self, imports: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Ranks that are started from now on are forked, where they can be: see `RankForker`."""
        self._forker = RankForker(
            imports=imports,
            command=command,
            environment=environment,
            passed_files=self._passed_files,
            when_started=self._guarded.add,
        )
        self._forker.start_when_ranks_are_up()

    @property
    def are_forked(self) -> bool:
        """Whether all ranks of the current attempt were forked."""
        with self._changed:
            return all(isinstance(item.process, AdoptedProcess) for item in self._running)

    def start(self, starts: Sequence[RankStart], *, attempt: int, attempts: int) -> None:
        """Starts one attempt; the earlier one must have been stopped. `attempt` counts from 0.

        Raises:
            InputError: the program cannot be run, or a log cannot be written.
            StoppedError: `interrupt` came first.
        """
        self._reap()
        if self._forker is not None:
            self._forker.wait_ready(lambda: self.interrupted is not None)
        with self._changed:
            if self._interrupted is not None:
                raise StoppedError
            self._running = []
            self._stopper = None
            self._is_cleaned = False
            try:
                for start in starts:
                    self._running.append(self._start_one(start, attempt=attempt, attempts=attempts))
            except InputError:
                self._begin_stop(signal.SIGKILL, grace_s=0.0)
                raise

    def wait(self, timeout_s: float) -> bool:
        """Waits until every rank has ended and has been cleaned up after; True when so."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._is_over():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return True

    @property
    def is_running(self) -> bool:
        with self._changed:
            return bool(self._alive())

    @property
    def have_saved(self) -> bool:
        """Whether the ranks of the current attempt have ended as they do when they were asked to stop, some
        perhaps at their own end."""
        with self._changed:
            codes = {item.returncode for item in self._running}
            return ExitCode.PREEMPTED in codes and codes <= {ExitCode.PREEMPTED, ExitCode.DONE}

    @property
    def any_failed(self) -> bool:
        with self._changed:
            return self._any_failed()

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """Ends every rank and waits for it; at most the grace and a little more. Idempotent."""
        with self._changed:
            if self._is_over() and not self._any_failed():
                return  # a rank that ended well may have left something running on purpose
            self._begin_stop(signum, grace_s=self._grace_s)
        self.wait(self._grace_s + 2 * KILL_WAIT_S)

    def interrupt(self, signum: int) -> None:
        """Forwards `signum`, forbids further starts and returns; the ranks have the grace to end."""
        with self._changed:
            self._interrupted = signum
            self._begin_stop(signum, grace_s=self._grace_s)
            self._changed.notify_all()

    def ask_to_stop(self, signum: int, *, grace_s: float) -> None:
        """As `ask_to_leave`, and forbids further starts."""
        with self._changed:
            self._interrupted = signum
        self.ask_to_leave(signum, grace_s=grace_s)

    def ask_to_leave(self, signum: int, *, grace_s: float) -> None:
        """Passes `signum` on to ranks that save their state when they get it, each as soon as it listens.
        They have `grace_s` to leave; then `interrupt`'s way is gone. Returns at once.
        """
        with self._changed:
            waiting = self._alive()
            self._changed.notify_all()
        threading.Thread(
            target=self._ask, args=(signum, waiting, grace_s), daemon=True, name="rank-ask"
        ).start()

    def _ask(self, signum: int, waiting: list[_Running], grace_s: float) -> None:
        now = time.monotonic()
        deadline_s, listen_s = now + grace_s, now + min(grace_s, _LISTEN_WAIT_S)
        with self._changed:
            while self._alive() and (left := deadline_s - time.monotonic()) > 0:
                for item in list(waiting):
                    is_deaf = time.monotonic() >= listen_s
                    if item.returncode is None and (is_deaf or proc.catches(item.process.pid, signum)):
                        os.kill(item.process.pid, signum)
                        waiting.remove(item)
                self._changed.wait(min(left, 0.05 if waiting else left))
            if self._alive():
                self._begin_stop(signal.SIGTERM, grace_s=self._grace_s)

    def forward(self, signum: int) -> tuple[int, ...]:
        """Passes a signal on to the ranks that handle it, and returns those that would have died of it.

        What it means is up to them; one that ignores it needs no telling.
        """
        deaf = []
        with self._changed:
            for item in self._alive():
                pid = item.process.pid
                if proc.catches(pid, signum):
                    os.kill(pid, signum)
                elif not proc.ignores(pid, signum) and not proc.is_exiting(pid):
                    deaf.append(item.start.rank)
        return tuple(deaf)

    def kill(self) -> None:
        """SIGKILLs every rank and what it started, now."""
        with self._changed:
            self._kill_sessions()

    def close(self) -> None:
        """Kills what is left and lets the guardian go. After a success nothing is left to kill."""
        if not self.wait(0.0):
            self.kill()
            self.wait(KILL_WAIT_S)
        self._reap()
        if self._forker is not None and (pid := self._forker.close()) is not None:
            self._guarded.drop(pid)
        self._guarded.close()

    def _start_one(self, start: RankStart, *, attempt: int, attempts: int) -> _Running:
        try:
            start.log.parent.mkdir(parents=True, exist_ok=True)
            start.error_file.parent.mkdir(parents=True, exist_ok=True)
            start.error_file.unlink(missing_ok=True)
            log = start.log.open("ab", buffering=0)
            if log.tell() > 0:
                log.write(_separator(attempt, attempts).encode())
        except OSError as error:
            raise log_not_writable(start.log, error) from error
        with log:
            log_start = log.tell()
            process = self._new_process(start, log.fileno())
        self._guarded.add(process.pid)
        running = _Running(start, process, log_start)
        threading.Thread(target=self._watch, args=(running,), daemon=True, name="rank-watch").start()
        return running

    def _new_process(self, start: RankStart, log: int) -> subprocess.Popen[bytes] | AdoptedProcess:
        if self._forker is not None:
            try:
                return self._forker.fork(start.command, start.environment, log, start.pinning)
            except NotForkedError:
                pass  # the usual way, which only takes longer
        try:
            with pinned(start.pinning):
                return subprocess.Popen(
                    start.command,
                    env=dict(start.environment),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=self._passed_files,
                )
        except OSError as error:
            raise InputError(
                f"the program {start.command[0]!r}",
                f"it cannot be run: {error.strerror}",
                "check its path and that it may be executed; a script without #! needs an interpreter",
            ) from error

    def _watch(self, item: _Running) -> None:
        # WNOWAIT leaves the zombie, so that the process id, which names the session too, stays ours until
        # everything that the rank started has been ended.
        info = os.waitid(os.P_PID, item.process.pid, os.WEXITED | os.WNOWAIT)
        now = time.time()
        assert info is not None
        with self._changed:
            item.returncode = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
            item.ended_wall_s = now
            if item.returncode == ExitCode.PREEMPTED:
                # The others, who agreed to stop with it, are about to leave by themselves.
                self._begin_stop(None, grace_s=self._grace_s)
            elif item.returncode != 0:
                self._begin_stop(signal.SIGTERM, grace_s=self._failure_grace_s)
            self._changed.notify_all()

    def _begin_stop(self, signum: int | None, *, grace_s: float) -> None:
        """Sends `signum`, if any, and SIGKILL after the grace to those that are then still there."""
        if self._stopper is not None or self._is_cleaned or not self._running:
            return
        if signum is not None:
            self._tell_to_end(signum)
        self._stopper = threading.Thread(
            target=self._finish_stop, args=(grace_s,), daemon=True, name="rank-stop"
        )
        self._stopper.start()

    def _tell_to_end(self, signum: int) -> None:
        for item in self._alive():
            # One that is already ending, of a signal from elsewhere, is not ended by us.
            if not proc.is_exiting(item.process.pid):
                item.stopped_wall_s = time.time()
        self._signal_alive(signum)

    def _finish_stop(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        with self._changed:
            while self._alive() and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            self._kill_sessions()
            deadline = time.monotonic() + KILL_WAIT_S
            while self._alive() and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            self._stopper = None
            self._is_cleaned = True
            self._changed.notify_all()

    def _kill_sessions(self) -> None:
        for item in self._running:
            if item.process.returncode is None:  # not reaped: the number is still this rank's
                if item.returncode is None and not proc.is_exiting(item.process.pid):
                    item.is_killed = True
                    item.stopped_wall_s = item.stopped_wall_s or time.time()
                guardian.kill_session(item.process.pid)

    def _signal_alive(self, signum: int) -> None:
        # To the rank alone, not to its session: a data loader worker that dies of SIGTERM would make the
        # rank fail in the middle of saving its state.
        for item in self._alive():
            os.kill(item.process.pid, signum)

    def _alive(self) -> list[_Running]:
        return [item for item in self._running if item.returncode is None]

    def _any_failed(self) -> bool:
        return any(item.returncode not in _GOOD for item in self._running)

    def _is_over(self) -> bool:
        # A rank that survives SIGKILL is stuck in the kernel: it is left behind, and told of by its missing
        # return code.
        return self._stopper is None and (self._is_cleaned or not self._alive())

    def _reap(self) -> None:
        with self._changed:
            for item in self._running:
                if item.returncode is not None and item.process.returncode is None:
                    item.process.wait()
                    self._guarded.drop(item.process.pid)


def log_not_writable(log: Path, error: OSError) -> InputError:
    return InputError(f"{log}", f"the log cannot be written: {error.strerror}", "choose another --output")


def _separator(attempt: int, attempts: int) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    # Where machines come and go there are more starts than those that a failure made necessary.
    which = f"attempt {attempt + 1} of {attempts}" if attempt < attempts else f"start {attempt + 1}"
    return f"\n===== drivetrain launch: {which}, {when} =====\n"
