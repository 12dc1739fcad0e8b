"""A machine's part in a job under torch's elastic agent: it meets the others, runs ranks, takes leave.

Of this room only modules called agent import torch, when a job is launched.
"""

from __future__ import annotations

import os
import socket

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousError, RendezvousHandler

from drivetrain.launch.agent_bulletin import Bulletin, lost_after_s
from drivetrain.launch.agent_loop import AgentReport, Callbacks, RankAgent
from drivetrain.launch.agent_rendezvous import open_rendezvous, withdraw
from drivetrain.launch.check import DEFAULT_MASTER_PORT, Rendezvous, rendezvous_of, split_endpoint
from drivetrain.launch.farewell import HEAR_S, exchange, explain
from drivetrain.launch.ranks import RankProcesses, StoppedError
from drivetrain.spec.job import LaunchRequest


def run_agent(
    request: LaunchRequest,
    *,
    ranks: RankProcesses,
    callbacks: Callbacks,
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
        spec = _worker_spec(request, handler)
        agent = RankAgent(spec, request, ranks=ranks, callbacks=callbacks, bulletin=bulletin, report=report)
        result = agent.run()
        report.has_failed = result is None or result.is_failed()
        if result is None:
            report.error = "the job has all the machines it may have; this one was not taken"
    except StoppedError:
        pass  # the launcher was interrupted, and says so itself
    except RendezvousClosedError:
        report.error = _closed(request, report)
    except (RuntimeError, TimeoutError, RendezvousError) as error:
        report.error = explain(request, report, error)
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
        report.failures_elsewhere = exchange(request, ranks, bulletin, report)
    # A job that was told to stop will be run again, perhaps under the same name in a store that stays.
    if handler is not None and ranks.interrupted is not None:
        withdraw(handler)
    elif handler is not None and not ranks.have_saved:
        _close(handler)
    if bulletin is not None:
        if is_joined:
            bulletin.leave(timeout_s=HEAR_S)
        bulletin.close()


def _open_bulletin(request: LaunchRequest, run_id: str) -> Bulletin | None:
    kind = rendezvous_of(request)
    if kind is Rendezvous.LOCAL:
        return None
    if kind is Rendezvous.C10D:
        host, port = split_endpoint(request.rdzv_endpoint or "")
    else:
        host, port = request.master_addr or "", request.master_port or DEFAULT_MASTER_PORT
    return Bulletin(host, port, run_id=run_id, lost_after_s=lost_after_s(request))


def _closed(request: LaunchRequest, report: AgentReport) -> str:
    if report.node_rank is not None:
        return "another machine ended the job while this one tried to join it again"
    return (
        f"the job {request.rdzv_id!r} at {request.rdzv_endpoint} has ended\n"
        "  → for a new job at the same store give another --rdzv-id, the same on every machine"
    )


def _close(handler: RendezvousHandler) -> None:
    """So that a machine which comes late is turned away instead of waiting for a job that has ended."""
    try:
        handler.shutdown()
    except (RuntimeError, RendezvousError):
        return  # its host has gone first
