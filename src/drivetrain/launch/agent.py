"""torch's elastic agent over our own processes: it meets other machines, counts restarts, numbers ranks.

The only part of this room that imports torch, when a job is launched.
"""

from __future__ import annotations

import os
import signal
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events.api import Event, EventSource
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandler,
)

from drivetrain.launch.agent_bulletin import LOST_AFTER_S, Bulletin
from drivetrain.launch.agent_rendezvous import HostedStoreRendezvous, open_rendezvous
from drivetrain.launch.check import DEFAULT_MASTER_PORT, Rendezvous, rendezvous_of, split_endpoint
from drivetrain.launch.environment import Place
from drivetrain.launch.failures import causes, earliest, rank_outcome, signal_name
from drivetrain.launch.ranks import RankProcesses, StoppedError
from drivetrain.spec.job import LaunchRequest
from drivetrain.spec.outcome import RankOutcome

# After the ranks' grace: how much longer one machine waits to hear how the others ended.
_HEAR_S = 2.5


@dataclass
class AgentReport:
    """What the agent knows at the end; filled while it runs, so that an interrupted launcher can read it."""

    node_rank: int | None = None
    world_size: int = 0
    restarts: int = 0
    failures_elsewhere: tuple[RankOutcome, ...] = ()
    error: str | None = None
    has_failed: bool = False  # here or on another machine, in the last attempt
    failure_seen_s: float | None = None  # monotonic


class RankAgent(LocalElasticAgent):
    """torch's local agent with our processes instead of its own.

    torch opens a rank's stdout and stderr as two files, waits 30 s for the others after a failure, learns of
    an end by polling, lets a machine run on when another has failed, and asks DNS for every event it records.

    Args:
        start_ranks: starts the local ranks at the given places.
        bulletin: notices from other machines; None on one machine.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        ranks: RankProcesses,
        start_ranks: Callable[[list[Place]], None],
        bulletin: Bulletin | None,
        interval_s: float,
        report: AgentReport,
    ) -> None:
        super().__init__(spec=spec, logs_specs=DefaultLogsSpecs(log_dir=os.devnull))
        self._ranks = ranks
        self._start_ranks = start_ranks
        self._bulletin = bulletin
        self._interval_s = interval_s
        self._report = report
        self._has_announced = False
        self._has_published = False
        self._store: Any = None  # torch's own attribute, set at each rendezvous and told as None to checkers

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        self._open_epoch(worker_group)
        attempt = spec.max_restarts - self._remaining_restarts
        self._report.node_rank = worker_group.group_rank
        self._report.world_size = worker_group.workers[0].world_size
        self._report.restarts = attempt
        if attempt == 0 and self._ranks.is_started and self._bulletin is None:
            return self._ranks.pids()  # on one machine they were started before torch was even imported
        self._start_ranks([self._place(worker_group, worker, attempt) for worker in worker_group.workers])
        return self._ranks.pids()

    def _place(self, worker_group: Any, worker: Any, attempt: int) -> Place:
        spec = worker_group.spec
        return Place(
            rank=worker.global_rank,
            local_rank=worker.local_rank,
            world_size=worker.world_size,
            local_world_size=spec.local_world_size,
            node_rank=worker_group.group_rank or 0,
            num_nodes=worker_group.group_world_size or 1,
            master_addr=worker_group.master_addr or "127.0.0.1",
            master_port=worker_group.master_port or 0,
            attempt=attempt,
            max_restarts=spec.max_restarts,
            run_id=spec.rdzv_handler.get_run_id(),
            store_is_hosted=spec.rdzv_handler.use_agent_store,
            error_file="",  # these two depend on the folder: the caller's business
            run_dir="",
        )

    def _open_epoch(self, worker_group: Any) -> None:
        """The machines of one attempt agree on a name for it and on how many restarts there have been.

        Over the store that only they share. A machine that joins has seen none of the restarts, and one that
        saw another rejoin before it heard of the failure has not counted it.
        """
        self._has_announced = self._has_published = False
        self._report.failure_seen_s = self._report.error = None
        if self._bulletin is None:
            return
        max_restarts, num_nodes = worker_group.spec.max_restarts, worker_group.group_world_size
        self._store.set(f"restarts/{worker_group.group_rank}", str(max_restarts - self._remaining_restarts))
        if worker_group.group_rank == 0:
            self._store.set("epoch", uuid.uuid4().hex)
        restarts = max(int(self._store.get(f"restarts/{node}")) for node in range(num_nodes))
        self._remaining_restarts = max(0, max_restarts - restarts)
        self._bulletin.open_epoch(
            self._store.get("epoch").decode(),
            node_rank=worker_group.group_rank or 0,
            num_nodes=num_nodes,
        )

    def _stop_workers(self, worker_group: WorkerGroup, *_: Any, **__: Any) -> None:  # noqa: ARG002
        self._ranks.stop()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, *_: Any, **__: Any) -> None:
        self._ranks.stop(death_sig)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        deadline = time.monotonic() + self._interval_s
        is_over = self._ranks.wait(self._interval_s)
        if self._ranks.interrupted is not None:
            self._announce()
            if not is_over:
                return RunResult(state=WorkerState.HEALTHY)
            raise StoppedError
        if self._ranks.any_failed:
            self._announce()
            return RunResult(state=WorkerState.FAILED if is_over else WorkerState.HEALTHY)
        if self._bulletin is not None and self._bulletin.peer_failed:
            self._report.failure_seen_s = self._report.failure_seen_s or time.monotonic()
            self._ranks.stop()
            return RunResult(state=WorkerState.FAILED)
        if self._has_lost_a_machine():
            self._ranks.stop()
            return RunResult(state=WorkerState.FAILED)
        if not is_over:
            return RunResult(state=WorkerState.HEALTHY)
        others = self._ends_of_all(deadline)
        if any(others.values()):
            self._report.failure_seen_s = self._report.failure_seen_s or time.monotonic()
            return RunResult(state=WorkerState.FAILED)
        if len(others) < (worker_group.group_world_size or 1):
            return RunResult(state=WorkerState.HEALTHY)
        values = {worker.global_rank: None for worker in worker_group.workers}
        return RunResult(state=WorkerState.SUCCEEDED, return_values=values)

    def _announce(self) -> None:
        if self._bulletin is not None and not self._has_announced:
            self._has_announced = True
            self._report.failure_seen_s = time.monotonic()
            self._bulletin.announce_failure()

    def _ends_of_all(self, deadline: float) -> dict[int, RankOutcome | None]:
        """How the machines ended, by node rank. Ours has ended well; the job has when all have."""
        if self._bulletin is None:
            return {0: None}
        if not self._has_published:
            self._has_published = True
            self._bulletin.publish_end(None, timeout_s=5.0)
        ends = self._bulletin.ends(timeout_s=1.0)
        if len(ends) == self._bulletin.num_nodes:
            return ends
        time.sleep(max(0.0, deadline - time.monotonic()))
        return ends

    def _has_lost_a_machine(self) -> bool:
        """Raises RendezvousConnectionError where a restart would not help."""
        if self._bulletin is None:
            return False
        if self._bulletin.is_gone:
            raise RendezvousConnectionError("the store that the machines meet at is gone")
        if not (lost := self._bulletin.lost_nodes()):
            return False
        nodes = ", ".join(map(str, lost))
        self._report.error = f"no sign of life from node rank {nodes} for {LOST_AFTER_S:.0f} s"
        if isinstance(self._rdzv_handler, HostedStoreRendezvous):
            raise RendezvousConnectionError(self._report.error)
        return True

    def _exit_barrier(self) -> None:
        """Nothing to wait for: the ranks counted as successful only once every machine was done."""

    def _construct_event(self, state: str, source: EventSource, *_: Any, **__: Any) -> Event:
        """torch's own asks for the fully qualified host name each time, which stalls where DNS is broken, for
        a log that nobody reads here."""
        return Event(f"torchelastic.worker.status.{state}", source=source, metadata={})


def run_agent(
    request: LaunchRequest,
    *,
    ranks: RankProcesses,
    start_ranks: Callable[[list[Place]], None],
    listener: socket.socket | None,
    run_id: str,
    report: AgentReport,
) -> None:
    """Runs the job's part on this machine to its end, filling `report`. Blocks; every rank has ended after.

    Raises:
        InputError: the ranks' program cannot be run.
    """
    if rendezvous_of(request) is Rendezvous.C10D:
        # Sharing the rendezvous' store with the ranks hangs a job that grows, and leaves stale keys behind
        # when a machine is lost (torch 2.13, 2.14). torch reads this variable at every rendezvous.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    bulletin: Bulletin | None = None
    handler: RendezvousHandler | None = None
    try:
        handler = open_rendezvous(request, run_id=run_id, listener=listener)
        bulletin = _open_bulletin(request, run_id)
        agent = RankAgent(
            _worker_spec(request, handler),
            ranks=ranks,
            start_ranks=start_ranks,
            bulletin=bulletin,
            interval_s=request.monitor_interval_s,
            report=report,
        )
        result = agent.run()
        report.has_failed = result is None or result.is_failed()
        if result is None:
            report.error = "the job has all the machines it may have; this one was not taken"
    except StoppedError:
        pass  # the launcher was interrupted, and says so itself
    except RendezvousClosedError:
        report.error = "another machine ended the job while this one tried to join it again"
    except (RuntimeError, TimeoutError, RendezvousError) as error:
        report.error = _explain(request, report, error)
    finally:
        ranks.stop()
        _take_leave(request, ranks, handler, bulletin, report)


def _worker_spec(request: LaunchRequest, handler: RendezvousHandler) -> WorkerSpec:
    return WorkerSpec(
        role="default_role",
        local_world_size=request.nproc_per_node,
        rdzv_handler=handler,
        entrypoint=request.command[0],
        max_restarts=request.max_restarts,
        monitor_interval=0.001,  # the agent's own sleep; our monitor waits for the ranks instead
        local_addr=request.local_addr,
    )


def _take_leave(
    request: LaunchRequest,
    ranks: RankProcesses,
    handler: RendezvousHandler | None,
    bulletin: Bulletin | None,
    report: AgentReport,
) -> None:
    """Tells the other machines how ours ended, hears how theirs did, and lets the job's store go."""
    is_joined = bulletin is not None and report.node_rank is not None
    if bulletin is not None and is_joined:
        report.failures_elsewhere = _exchange(request, ranks, bulletin, report)
    if handler is not None and ranks.interrupted is None:
        _close(handler)
    if bulletin is not None:
        if is_joined:
            bulletin.leave(timeout_s=_HEAR_S)
        bulletin.close()


def _open_bulletin(request: LaunchRequest, run_id: str) -> Bulletin | None:
    kind = rendezvous_of(request)
    if kind is Rendezvous.LOCAL:
        return None
    if kind is Rendezvous.C10D:
        host, port = split_endpoint(request.rdzv_endpoint or "")
    else:
        host, port = request.master_addr or "", request.master_port or DEFAULT_MASTER_PORT
    return Bulletin(host, port, run_id=run_id)


def _exchange(
    request: LaunchRequest, ranks: RankProcesses, bulletin: Bulletin, report: AgentReport
) -> tuple[RankOutcome, ...]:
    """Publishes this machine's earliest failure and returns those of the others, where any machine failed."""
    own = own_failure(ranks, node_rank=report.node_rank or 0)
    if own is None and not report.has_failed and report.error is None:
        return ()
    bulletin.announce_failure()
    bulletin.publish_end(own, timeout_s=_HEAR_S)
    # The others stop their ranks at about the same time as we did, and have the same grace.
    now = time.monotonic()
    ends = bulletin.collect_ends(
        deadline_s=max(now + 1.0, (report.failure_seen_s or now) + request.grace_s + _HEAR_S)
    )
    missing = set(range(bulletin.num_nodes)) - set(ends) - {report.node_rank}
    if missing and report.error is None:
        nodes = ", ".join(map(str, sorted(missing)))
        report.error = f"node rank {nodes} did not say how its ranks ended: the first failure may be there"
    return tuple(end for node, end in ends.items() if end is not None and node != report.node_rank)


def own_failure(ranks: RankProcesses, *, node_rank: int) -> RankOutcome | None:
    """The earliest failure of this machine, as the other machines are told of it."""
    host = socket.gethostname()
    ends = ranks.ends()
    outcomes = [rank_outcome(end, node_rank=node_rank, host=host) for end in ends]
    first = earliest(causes(ends, outcomes))
    if ranks.interrupted is None or not outcomes:
        return first
    if first is None:
        first = outcomes[0]
    return RankOutcome(
        rank=first.rank,
        local_rank=first.local_rank,
        node_rank=node_rank,
        host=host,
        pid=first.pid,
        signal=ranks.interrupted,
        ended_wall_s=first.ended_wall_s,
        message=f"the launcher on {host} was interrupted by {signal_name(ranks.interrupted)}",
        log=first.log,
    )


def _explain(request: LaunchRequest, report: AgentReport, error: Exception) -> str:
    where = request.rdzv_endpoint or f"{request.master_addr}:{request.master_port or DEFAULT_MASTER_PORT}"
    host = socket.gethostname()
    reason = str(error.__cause__ or error).strip().split("\n")[0]
    if report.node_rank is None:
        return (
            f"{host} could not join the job at {where}: {type(error).__name__}: {reason}\n"
            "  → check that the launcher is up there, that the port is open between the machines, and that "
            "all were given the same address and --rdzv-id"
        )
    return f"{host} lost touch with the other machines of the job at {where}: {reason}"


def _close(handler: RendezvousHandler) -> None:
    """So that a machine which comes late is turned away instead of waiting for a job that has ended."""
    try:
        handler.shutdown()
    except (RuntimeError, RendezvousError):
        return  # its host has gone first
