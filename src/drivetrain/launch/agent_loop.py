"""torch's elastic agent over our own processes: the loop that starts ranks, watches them, starts them anew.

Long because an agent's states are told in one place: what each means shows only beside the others.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events.api import Event, EventSource
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
)

from drivetrain.launch.agent_bulletin import ELASTIC_LOST_AFTER_S, Bulletin, lost_after_s
from drivetrain.launch.agent_rendezvous import HostedStoreRendezvous
from drivetrain.launch.environment import Place
from drivetrain.launch.failures import earliest, lost_a_peer
from drivetrain.launch.farewell import HEAR_S, own_failure
from drivetrain.launch.ranks import RankProcesses, StoppedError
from drivetrain.spec.job import LaunchRequest
from drivetrain.spec.outcome import RankOutcome
from drivetrain.spec.restart import Restart, Why

# How long machines that have just met wait for each other's keys: one may be gone already.
_FORM_S = 20.0
_MOST_FORMATIONS = 5
# Ranks that have saved may be seen to end before the notice that says why; notices come every 0.3 s.
_NOTICE_S = 3.0


@dataclass
class AgentReport:
    """What the agent knows at the end; filled while it runs, so that an interrupted launcher can read it."""

    node_rank: int | None = None
    world_size: int = 0
    restarts: int = 0  # those that were spent
    failures_elsewhere: tuple[RankOutcome, ...] = ()
    error: str | None = None
    has_failed: bool = False  # here or on another machine, in the last attempt
    failure_seen_s: float | None = None  # monotonic


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """What the agent has done by others: `start_ranks` starts the local ranks at the given places;
    `record_restart` hears of each start but the first."""

    start_ranks: Callable[[list[Place]], None]
    record_restart: Callable[[Restart], None]


@dataclass(frozen=True, kw_only=True)
class _Change:
    """Why ranks start anew, the failure that came first, if one did, and since when that is known."""

    why: Why
    first: RankOutcome | None = None
    noticed_wall_s: float


class RankAgent(LocalElasticAgent):
    """torch's local agent with our processes instead of its own, and our rules for starting them anew.

    torch opens a rank's stdout and stderr as two files, waits 30 s for the others after a failure, learns of
    an end by polling, lets a machine run on when another has failed, ends ranks without a save when a machine
    joins, spends a restart on a machine that is gone, and asks DNS for every event it records.

    Args:
        bulletin: notices from other machines; None on one machine.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        request: LaunchRequest,
        *,
        ranks: RankProcesses,
        callbacks: Callbacks,
        bulletin: Bulletin | None,
        report: AgentReport,
    ) -> None:
        super().__init__(spec=spec, logs_specs=DefaultLogsSpecs(log_dir=os.devnull))
        self._request = request
        self._ranks = ranks
        self._callbacks = callbacks
        self._bulletin = bulletin
        self._report = report
        self._num_starts = 0
        self._formed_wall_s = self._started_wall_s = 0.0
        self._store: Any = None  # torch's own attribute, set at each rendezvous and told as None to checkers
        self._begin_attempt()

    def _begin_attempt(self) -> None:
        self._has_announced = self._has_published = self._has_asked = self._is_leaving = False
        self._noticed_wall_s: float | None = None
        self._saved_s: float | None = None  # monotonic: since when all ranks here have saved and left
        self._report.failure_seen_s = self._report.error = None

    # -- the loop -----------------------------------------------------------------------------------------

    def _invoke_run(self, role: str = "") -> RunResult:  # noqa: ARG002  torch's loop, with our rules
        group = self._worker_group
        self._initialize_workers(group)
        while True:
            result = self._monitor_workers(group)
            group.state = result.state
            if result.state is WorkerState.SUCCEEDED:
                return result
            if result.state is WorkerState.HEALTHY:
                self._look_for_joiners()
                continue
            change = self._failure() if result.state is WorkerState.FAILED else self._regrouping()
            if change is None:
                self._ranks.stop()
                return result
            self._start_anew(change)

    def _start_anew(self, change: _Change) -> None:
        world_size_before = self._report.world_size
        self._ranks.stop()
        ended_wall_s = max((end.ended_wall_s or 0.0 for end in self._ranks.ends()), default=0.0)
        if change.why is Why.FAILED:
            self._remaining_restarts -= 1
        self._initialize_workers(self._worker_group)
        first = change.first
        self._callbacks.record_restart(
            Restart(
                why=change.why,
                attempt=self._num_starts - 1,
                world_size_before=world_size_before,
                world_size=self._report.world_size,
                rank=first.rank if first is not None else None,
                signal=first.signal if first is not None else None,
                exit_code=first.exit_code if first is not None else None,
                message=first.message if first is not None else None,
                noticed_wall_s=change.noticed_wall_s,
                ended_wall_s=ended_wall_s,
                formed_wall_s=self._formed_wall_s,
                started_wall_s=self._started_wall_s,
                is_forked=self._ranks.are_forked,
            )
        )

    def _failure(self) -> _Change | None:
        """What to do about a rank that failed, or a machine that is gone: None ends the job.

        In an elastic job a machine that is gone spends no restart: its ranks' peers failed only because of
        it. Machines decide this alike, from what all of them have said of their ends.
        """
        noticed = self._noticed_wall_s or time.time()
        own = own_failure(self._request, self._ranks, node_rank=self._report.node_rank or 0)
        if self._bulletin is None or not self._request.is_elastic:
            return _Change(why=Why.FAILED, first=own, noticed_wall_s=noticed) if self._may_restart() else None
        bulletin = self._bulletin
        bulletin.announce_failure()
        bulletin.publish_end(own, timeout_s=HEAR_S)
        limit_s = self._request.grace_s + ELASTIC_LOST_AFTER_S + HEAR_S
        ends = bulletin.collect_ends(deadline_s=time.monotonic() + limit_s)
        self._refuse_a_lost_store()
        first = earliest([end for end in (own, *ends.values()) if end is not None])
        leaving = bulletin.leaving_nodes(timeout_s=1.0)
        lost = set(range(bulletin.num_nodes)) - {*ends, self._report.node_rank}
        remain = bulletin.num_nodes - len(leaving)
        if leaving and remain >= self._request.min_nodes and (first is None or first.node_rank in leaving):
            return _Change(why=Why.LEFT, noticed_wall_s=noticed)
        if lost and (first is None or lost_a_peer(first)):
            return _Change(why=Why.LOST, first=first, noticed_wall_s=noticed)
        return _Change(why=Why.FAILED, first=first, noticed_wall_s=noticed) if self._may_restart() else None

    def _may_restart(self) -> bool:
        return self._remaining_restarts > 0

    def _regrouping(self) -> _Change:
        has_joiners = self._bulletin is not None and self._bulletin.is_regrouping
        noticed = self._noticed_wall_s or time.time()
        return _Change(why=Why.JOINED if has_joiners else Why.LEFT, noticed_wall_s=noticed)

    def _look_for_joiners(self) -> None:
        """Where a machine waits to join, all ranks save and leave; torch's agent would end them as they are.
        Those that are not known to save are ended so, too."""
        if self._bulletin is None or not self._request.is_elastic or self._has_asked:
            return
        if self._ranks.any_failed or self._ranks.interrupted is not None or not self._ranks.is_running:
            return
        if not self._bulletin.is_regrouping and self._rdzv_handler.num_nodes_waiting() == 0:
            return
        self._has_asked = True
        self._noticed_wall_s = time.time()
        self._bulletin.announce_regrouping()
        if self._request.stop_grace_s is not None:
            self._ranks.ask_to_leave(signal.SIGTERM, grace_s=self._request.stop_grace_s)

    # -- one attempt --------------------------------------------------------------------------------------

    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        """Meets the others and starts ranks; once more where one of them has gone meanwhile."""
        for left in reversed(range(_MOST_FORMATIONS)):
            try:
                super()._initialize_workers(worker_group)
                return
            except DistStoreError:
                if not self._request.is_elastic or left == 0:
                    raise
                self._ranks.stop()

    def _assign_worker_ranks(self, store: Any, *arguments: Any, **named: Any) -> Any:
        if self._request.is_elastic:
            store.set_timeout(timedelta(seconds=_FORM_S))
        return super()._assign_worker_ranks(store, *arguments, **named)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        self._begin_attempt()
        start = self._open_epoch(worker_group)
        self._num_starts = start + 1
        self._formed_wall_s = time.time()
        self._report.node_rank = worker_group.group_rank
        self._report.world_size = worker_group.workers[0].world_size
        self._report.restarts = spec.max_restarts - self._remaining_restarts
        if not (start == 0 and self._ranks.is_started and self._bulletin is None):
            # On one machine the first were started before torch was even imported.
            places = [self._place(worker_group, worker, start) for worker in worker_group.workers]
            self._callbacks.start_ranks(places)
        self._started_wall_s = time.time()
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

    def _open_epoch(self, worker_group: Any) -> int:
        """The machines of one attempt agree on a name for it, on how many starts there have been before,
        which it returns, and on how many of them were spent on failures.

        Over the store that only they share. A machine that joins has seen none of them, and one that saw
        another rejoin before it heard of the failure has not counted it.
        """
        if self._bulletin is None:
            return self._num_starts
        max_restarts, num_nodes = worker_group.spec.max_restarts, worker_group.group_world_size
        own = (max_restarts - self._remaining_restarts, self._num_starts)
        for name, value in zip(("restarts", "starts"), own, strict=True):
            self._store.set(f"{name}/{worker_group.group_rank}", str(value))
        if worker_group.group_rank == 0:
            self._store.set("epoch", uuid.uuid4().hex)
        restarts, starts = (
            max(int(self._store.get(f"{name}/{node}")) for node in range(num_nodes))
            for name in ("restarts", "starts")
        )
        self._remaining_restarts = max(0, max_restarts - restarts)
        self._bulletin.open_epoch(
            self._store.get("epoch").decode(),
            node_rank=worker_group.group_rank or 0,
            num_nodes=num_nodes,
        )
        return starts

    def _stop_workers(self, worker_group: WorkerGroup, *_: Any, **__: Any) -> None:  # noqa: ARG002
        self._ranks.stop()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, *_: Any, **__: Any) -> None:
        self._ranks.stop(death_sig)

    # -- watching -----------------------------------------------------------------------------------------

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """FAILED: here or elsewhere. STOPPED: all ranks have saved, to go on in another world."""
        deadline = time.monotonic() + self._request.monitor_interval_s
        is_over = self._ranks.wait(self._request.monitor_interval_s)
        if self._ranks.interrupted is not None:
            return self._when_interrupted(is_over=is_over)
        if self._ranks.any_failed:
            self._announce()
            return RunResult(state=WorkerState.FAILED if is_over else WorkerState.HEALTHY)
        if self._bulletin is not None and self._bulletin.peer_failed:
            self._notice()
            self._ranks.stop()
            return RunResult(state=WorkerState.FAILED)
        if self._has_lost_a_machine():
            self._notice()
            self._ranks.stop()
            return RunResult(state=WorkerState.FAILED)
        if self._is_regrouping(is_over=is_over):
            return RunResult(state=WorkerState.STOPPED)
        if not is_over:
            return RunResult(state=WorkerState.HEALTHY)
        others = self._ends_of_all(deadline)
        if any(others.values()):
            self._notice()
            return RunResult(state=WorkerState.FAILED)
        if len(others) < (worker_group.group_world_size or 1):
            return RunResult(state=WorkerState.HEALTHY)
        values = {worker.global_rank: None for worker in worker_group.workers}
        return RunResult(state=WorkerState.SUCCEEDED, return_values=values)

    def _when_interrupted(self, *, is_over: bool) -> RunResult:
        if self._bulletin is not None and not self._is_leaving:
            self._is_leaving = True
            self._bulletin.announce_leaving()
        saves = self._request.stop_grace_s is not None  # then all ranks save with those that were asked to
        if not saves or (is_over and not self._ranks.have_saved):
            self._announce()
        if not is_over:
            return RunResult(state=WorkerState.HEALTHY)
        raise StoppedError

    def _is_regrouping(self, *, is_over: bool) -> bool:
        """Whether the ranks have left for a world with more machines, or one without those that were told to
        stop, if enough remain."""
        bulletin, request = self._bulletin, self._request
        if bulletin is None or not request.is_elastic:
            return False
        if request.stop_grace_s is None:
            return self._has_asked
        if not is_over or not self._ranks.have_saved:
            return False
        if bulletin.is_regrouping:
            return True
        now = time.monotonic()
        self._saved_s = self._saved_s or now
        if not self._has_published and now < self._saved_s + _NOTICE_S:
            leaving = bulletin.leaving_nodes(timeout_s=1.0)
            return bool(leaving) and bulletin.num_nodes - len(leaving) >= request.min_nodes
        return False

    def _announce(self) -> None:
        self._notice()
        if self._bulletin is not None and not self._has_announced:
            self._has_announced = True
            self._bulletin.announce_failure()

    def _notice(self) -> None:
        self._report.failure_seen_s = self._report.failure_seen_s or time.monotonic()
        if self._noticed_wall_s is None:
            failed = [end.ended_wall_s for end in self._ranks.ends() if end.ended_wall_s is not None]
            self._noticed_wall_s = min([time.time(), *failed])

    def _ends_of_all(self, deadline: float) -> dict[int, RankOutcome | None]:
        """How the machines ended, by node rank. Ours has ended well; the job has when all have."""
        if self._bulletin is None:
            return {0: None}
        if self._saved_s is not None and time.monotonic() < self._saved_s + _NOTICE_S:
            time.sleep(max(0.0, deadline - time.monotonic()))
            return {}
        if not self._has_published:
            self._has_published = True
            self._bulletin.publish_end(None, timeout_s=5.0)
        ends = self._bulletin.ends(timeout_s=1.0)
        if len(ends) == self._bulletin.num_nodes:
            return ends
        time.sleep(max(0.0, deadline - time.monotonic()))
        return ends

    def _refuse_a_lost_store(self) -> None:
        if self._bulletin is not None and self._bulletin.is_gone:
            raise RendezvousConnectionError("the store that the machines meet at is gone")

    def _has_lost_a_machine(self) -> bool:
        """Raises RendezvousConnectionError where a restart would not help."""
        if self._bulletin is None:
            return False
        self._refuse_a_lost_store()
        if not (lost := self._bulletin.lost_nodes()):
            return False
        nodes = ", ".join(map(str, lost))
        self._report.error = f"no sign of life from node rank {nodes} for {lost_after_s(self._request):.0f} s"
        if isinstance(self._rdzv_handler, HostedStoreRendezvous):
            raise RendezvousConnectionError(self._report.error)
        return True

    def _exit_barrier(self) -> None:
        """Nothing to wait for: the ranks counted as successful only once every machine was done."""

    def _construct_event(self, state: str, source: EventSource, *_: Any, **__: Any) -> Event:
        """torch's own asks for the fully qualified host name each time, which stalls where DNS is broken, for
        a log that nobody reads here."""
        return Event(f"torchelastic.worker.status.{state}", source=source, metadata={})
