"""Launches a job on this machine, alone or with others: the entry that `train` and `launch` call.

Importing this imports no torch: the agent does, in a thread of its own, while on a single machine the ranks
are already starting. The calling thread waits for signals, which torch's blocking calls would hold up.
"""

from __future__ import annotations

import dataclasses
import os
import select
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

from drivetrain.hardware.leases.inherited import inherited_files
from drivetrain.launch.check import DEFAULT_MASTER_PORT, Rendezvous, check, hosts_the_store, rendezvous_of
from drivetrain.launch.describe import describe_restart
from drivetrain.launch.environment import Place, launcher_environment
from drivetrain.launch.failures import causes, earliest, job_exit_code, rank_outcome, signal_name
from drivetrain.launch.lock import hold_folder
from drivetrain.launch.ports import listen
from drivetrain.launch.ranks import RankProcesses, RankStart, log_not_writable
from drivetrain.launch.record import LaunchRecord, open_record
from drivetrain.launch.render import render_command
from drivetrain.launch.screen import ScreenTail
from drivetrain.spec.errors import InputError
from drivetrain.spec.exit_codes import ExitCode, exit_code_for_signal
from drivetrain.spec.job import LaunchRequest
from drivetrain.spec.outcome import Outcome, RankOutcome
from drivetrain.spec.restart import Restart

if TYPE_CHECKING:
    from drivetrain.launch.agent_loop import AgentReport

__all__ = ["launch", "render_command"]

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# What asks ranks that save their state to do so and leave.
_ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
# Schedulers send these to every process of a job step; what they mean is up to the ranks.
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
# Beyond the ranks' grace: how long an interrupted launcher waits for an agent that is stuck in the network.
_AGENT_S = 4.0


def launch(
    request: LaunchRequest,
    *,
    screen: Callable[[str], None] | None,
    note: Callable[[str], None] | None = None,
    lock: int | None = None,
) -> Outcome:
    """Runs the job's ranks on this machine to their end. Blocks; call it from the main thread.

    SIGTERM, SIGINT, SIGHUP and SIGQUIT are forwarded to the ranks, which then have `request.grace_s`; a
    second SIGINT kills at once. SIGUSR1 and SIGUSR2 are forwarded to the ranks that have a handler for them.
    Ranks that save their state when they are asked to stop (`request.stop_grace_s`) are asked by any of
    SIGTERM, SIGINT, SIGUSR1 and SIGUSR2, as soon as they listen, and have that long. The launcher's own
    handlers are restored afterwards.

    A rank has failed when its process has ended. One that raises but hangs at its exit (a thread that is no
    daemon, an atexit function) has not: of a script nothing tells that from one that handles the error and
    goes on. Ranks of `drivetrain train` leave by os._exit, so they cannot hang there.

    Args:
        screen: gets rank 0's output as it comes, in pieces to be written as they are (each with its own end
            of line), from another thread. Where rank 0 runs on another machine it is never called.
        note: gets what the launcher itself has to say while the ranks run, a line without its end.
        lock: what `hold_folder` gave, where the caller holds the run directory already.

    Returns:
        How it ended, which `launch/outcome.json` holds too, or else `error` says why it could not be written.
        `exit_code` is for the launcher's own exit.

    Raises:
        InputError: the request cannot be launched: a port is taken, a folder not writable or in use by
            another launcher, no such program.
    """
    check(request)
    with ExitStack() as held:
        listener = held.enter_context(_listen(request)) if hosts_the_store(request) else None
        lock = held.enter_context(hold_folder(request)) if lock is None else lock
        return _Job(request, open_record(request), _Held(listener, lock), screen, note).run()


def _listen(request: LaunchRequest) -> socket.socket:
    is_local = rendezvous_of(request) is Rendezvous.LOCAL and request.master_addr in (
        None,
        "127.0.0.1",
        "localhost",
    )
    default = 0 if rendezvous_of(request) is Rendezvous.LOCAL else DEFAULT_MASTER_PORT
    return listen(request.master_port or default, loopback_only=is_local)


@dataclass(frozen=True)
class _Held:
    """What the launcher holds while it runs: the socket of the job's store, and the run directory's lock."""

    listener: socket.socket | None
    lock: int


@dataclass
class _AgentEnd:
    """What the agent's thread leaves behind. `report` is None until torch has been imported."""

    report: AgentReport | None = None
    problem: BaseException | None = None
    is_done: threading.Event = field(default_factory=threading.Event)


class _Job:
    """One call of `launch`."""

    def __init__(
        self,
        request: LaunchRequest,
        record: LaunchRecord,
        held: _Held,
        screen: Callable[[str], None] | None,
        note: Callable[[str], None] | None,
    ) -> None:
        self._request = request
        self._record = record
        self._listener = held.listener
        self._show = screen
        self._note = note
        self._noted: set[int] = set()
        self._tail: ScreenTail | None = None
        self._started_wall_s = time.time()
        self._run_id = request.rdzv_id or (
            uuid.uuid4().hex if rendezvous_of(request) is Rendezvous.LOCAL else "drivetrain"
        )
        self._ranks = RankProcesses(
            grace_s=request.grace_s,
            held_files=(held.lock,),
            passed_files=inherited_files({**launcher_environment(), **request.environment}),
            failure_grace_s=request.failure_grace_s,
        )
        if request.imports is not None and (request.max_restarts or request.is_elastic):
            environment = {**launcher_environment(), **request.environment}
            self._ranks.fork_from(request.imports, request.command, environment)
        self._agent = _AgentEnd()

    def run(self) -> Outcome:
        with _signals() as wake:
            try:
                if rendezvous_of(self._request) is Rendezvous.LOCAL:
                    self._start_ranks(self._local_places())
                threading.Thread(
                    target=self._run_agent, args=(wake.done,), daemon=True, name="elastic-agent"
                ).start()
                self._wait(wake)
            except InputError as problem:
                self._agent.problem = problem
            finally:
                self._ranks.close()
                if self._tail is not None:
                    self._tail.close()
                outcome = self._written(self._outcome())
        if self._agent.problem is not None:
            raise self._agent.problem
        return outcome

    def _written(self, outcome: Outcome) -> Outcome:
        """The outcome, with the reason in it where it could not be written; it can still be shown."""
        try:
            self._record.write_outcome(outcome, self._node_rank())
        except OSError as error:
            problem = f"{self._record.outcome(self._node_rank())} could not be written: {error.strerror}"
            return dataclasses.replace(outcome, error="\n".join(filter(None, (outcome.error, problem))))
        return outcome

    def _node_rank(self) -> int | None:
        """As the rendezvous numbered this machine, or else as the user did; None where neither has."""
        report = self._agent.report
        if report is not None and report.node_rank is not None:
            return report.node_rank
        return 0 if rendezvous_of(self._request) is Rendezvous.LOCAL else self._request.node_rank

    def _local_places(self) -> list[Place]:
        assert self._listener is not None
        request = self._request
        return [
            Place(
                rank=rank,
                local_rank=rank,
                world_size=request.nproc_per_node,
                local_world_size=request.nproc_per_node,
                node_rank=0,
                num_nodes=1,
                master_addr=request.master_addr or "127.0.0.1",
                master_port=self._listener.getsockname()[1],
                attempt=0,
                max_restarts=request.max_restarts,
                run_id=self._run_id,
                store_is_hosted=True,
                error_file="",
                run_dir="",
            )
            for rank in range(request.nproc_per_node)
        ]

    def _start_ranks(self, places: list[Place]) -> None:
        own = launcher_environment()
        pinnings = self._request.pinnings
        starts = []
        for place in places:
            error_file = self._record.errors / f"attempt-{place.attempt}" / f"rank-{place.rank:05d}.json"
            variables = {**own, **self._request.environment}
            placed = dataclasses.replace(
                place, error_file=str(error_file.absolute()), run_dir=str(self._record.run.path.absolute())
            )
            variables |= placed.variables(variables)
            starts.append(
                RankStart(
                    rank=place.rank,
                    local_rank=place.local_rank,
                    command=self._request.command,
                    environment=variables,
                    log=self._record.run.log(place.rank),
                    error_file=error_file,
                    pinning=pinnings[place.local_rank] if pinnings else None,
                )
            )
        self._follow_first_rank(starts[0])
        self._ranks.start(starts, attempt=places[0].attempt, attempts=self._request.max_restarts + 1)

    def _follow_first_rank(self, start: RankStart) -> None:
        if self._show is None or start.rank != 0 or self._tail is not None:
            return
        try:
            start.log.touch()
            size = start.log.stat().st_size
        except OSError as error:
            raise log_not_writable(start.log, error) from error
        self._tail = ScreenTail(start.log, self._show, start=size)

    def _run_agent(self, done: Callable[[], None]) -> None:
        try:
            from drivetrain.launch.agent import run_agent
            from drivetrain.launch.agent_loop import AgentReport, Callbacks

            self._agent.report = AgentReport(node_rank=None)
            run_agent(
                self._request,
                ranks=self._ranks,
                callbacks=Callbacks(start_ranks=self._start_ranks, record_restart=self._record_restart),
                listener=self._listener,
                run_id=self._run_id,
                report=self._agent.report,
            )
        except BaseException as problem:  # noqa: BLE001  raised again by the waiting thread
            self._agent.problem = problem
        finally:
            self._agent.is_done.set()
            done()

    def _record_restart(self, restart: Restart) -> None:
        if self._node_rank() == 0:
            self._record.add_restart(restart)
        if self._note is not None:
            self._note(describe_restart(restart))

    def _wait(self, wake: _Wake) -> None:
        """Until the agent is done; after an interruption no longer than the grace and a little more."""
        give_up_s: float | None = None
        while not self._agent.is_done.is_set():
            left_s = None if give_up_s is None else give_up_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            for signum in wake.wait(left_s):
                stop_grace_s = self._request.stop_grace_s
                if stop_grace_s is not None and signum in _ASKING and self._ranks.interrupted is None:
                    self._ranks.ask_to_stop(signum, grace_s=stop_grace_s)
                    # Between two starts there is no rank that could save.
                    save_s = stop_grace_s + self._request.grace_s if self._ranks.is_running else 0.0
                    give_up_s = time.monotonic() + save_s + _AGENT_S
                elif signum in _PASSED_ON:
                    self._forward(signum)
                elif self._ranks.interrupted is None:
                    if self._tail is not None:
                        self._tail.end_at_traceback()
                    self._ranks.interrupt(signum)
                    # Without ranks there is nothing to end or to tell the other machines.
                    wait_s = self._request.grace_s + _AGENT_S if self._ranks.is_started else 1.0
                    give_up_s = time.monotonic() + wait_s
                elif signum == signal.SIGINT:
                    self._ranks.kill()
                    give_up_s = time.monotonic() + 1.0

    def _forward(self, signum: int) -> None:
        deaf = self._ranks.forward(signum)
        if not deaf or self._note is None or signum in self._noted:
            return
        self._noted.add(signum)
        who = f"rank {deaf[0]} has" if len(deaf) == 1 else f"ranks {', '.join(map(str, deaf))} have"
        name = signal_name(signum)
        self._note(f"{name} was not passed on: {who} no handler for it, and would have died of it")

    def _outcome(self) -> Outcome:
        report = self._agent.report
        node_rank = self._node_rank() or 0
        host = socket.gethostname()
        ends = self._ranks.ends()
        ranks = tuple(rank_outcome(end, node_rank=node_rank, host=host) for end in ends)
        elsewhere = report.failures_elsewhere if report else ()
        first = earliest((*causes(ends, ranks), *elsewhere))
        error = report.error if report else None
        code = job_exit_code(first, ranks)
        saves = self._request.stop_grace_s is not None
        if self._ranks.interrupted is not None and saves and _has_saved(ranks):
            if code == ExitCode.PREEMPTED:
                error = f"asked to stop by {signal_name(self._ranks.interrupted)}; the state is saved"
                if self._ranks.interrupted == signal.SIGINT:
                    code = exit_code_for_signal(signal.SIGINT)  # as shells expect it of Ctrl-C
        elif self._ranks.interrupted is not None:
            # What the ranks made of the forwarded signal is no failure of theirs.
            first = None
            code = exit_code_for_signal(self._ranks.interrupted)
            name = signal_name(self._ranks.interrupted)
            error = f"interrupted by {name}; the ranks have ended"
        elif code == ExitCode.DONE and (
            error or self._agent.problem or not ranks or report is None or report.has_failed
        ):
            code = ExitCode.USAGE if isinstance(self._agent.problem, InputError) else ExitCode.FAILED
        return Outcome(
            exit_code=int(code),
            world_size=(report.world_size if report else 0)
            or self._request.max_nodes * self._request.nproc_per_node,
            restarts=report.restarts if report else 0,
            started_wall_s=self._started_wall_s,
            ended_wall_s=time.time(),
            command=self._request.command,
            ranks=ranks,
            earliest_failure=first,
            error=error or (str(self._agent.problem) if self._agent.problem else None),
        )


def _has_saved(ranks: Sequence[RankOutcome]) -> bool:
    """Whether all ranks left as they do when they were asked to stop, some perhaps at their own end."""
    return bool(ranks) and all(not rank.failed and rank.exit_code is not None for rank in ranks)


class _Wake:
    """Wakes the waiting thread for a signal or for the agent's end, through pipes: no lock is held."""

    def __init__(self) -> None:
        self.signals, self.signals_in = os.pipe()
        self._done, self._done_in = os.pipe()
        os.set_blocking(self.signals_in, False)  # as signal.set_wakeup_fd wants it

    def done(self) -> None:
        os.write(self._done_in, b"x")

    def wait(self, timeout_s: float | None) -> list[int]:
        """The signals that came; empty when the agent is done or the time is over."""
        ready, _, _ = select.select([self.signals, self._done], [], [], timeout_s)
        return list(os.read(self.signals, 64)) if self.signals in ready else []


@contextmanager
def _signals() -> Iterator[_Wake]:
    """Collects signals while the job runs. Outside the main thread Python allows no handlers: none are set.

    What the launcher was told to ignore (nohup) stays ignored.
    """
    wake = _Wake()
    if threading.current_thread() is not threading.main_thread():
        yield wake
        return
    earlier_fd = signal.set_wakeup_fd(wake.signals_in)
    earlier = {
        signum: signal.signal(signum, _note)
        for signum in (*_ENDING, *_PASSED_ON)
        if signal.getsignal(signum) is not signal.SIG_IGN
    }
    try:
        yield wake
    finally:
        # The pipes stay open: an agent that is stuck in the network may still write to them.
        for signum, handler in earlier.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(earlier_fd)


def _note(_signum: int, _frame: FrameType | None) -> None:
    """The signal's number is already in the pipe; having a handler at all is what stops the default."""
