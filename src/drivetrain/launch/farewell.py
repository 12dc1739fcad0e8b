"""How a machine leaves a job: what it tells the others of its end, and what it hears of theirs. No torch."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from drivetrain.launch.check import DEFAULT_MASTER_PORT
from drivetrain.launch.failures import causes, earliest, rank_outcome, signal_name
from drivetrain.launch.ranks import RankProcesses
from drivetrain.spec.job import LaunchRequest
from drivetrain.spec.outcome import RankOutcome

if TYPE_CHECKING:
    from drivetrain.launch.agent_bulletin import Bulletin
    from drivetrain.launch.agent_loop import AgentReport

# After the ranks' grace: how much longer one machine waits to hear how the others ended.
HEAR_S = 2.5


def exchange(
    request: LaunchRequest, ranks: RankProcesses, bulletin: Bulletin, report: AgentReport
) -> tuple[RankOutcome, ...]:
    """Publishes this machine's earliest failure and returns those of the others, where any machine failed."""
    own = own_failure(request, ranks, node_rank=report.node_rank or 0)
    if own is None and ranks.interrupted is not None:
        bulletin.publish_end(None, timeout_s=HEAR_S)
    if own is None and not report.has_failed and report.error is None:
        return ()
    bulletin.announce_failure()
    bulletin.publish_end(own, timeout_s=HEAR_S)
    # The others stop their ranks at about the same time as we did, and have the same grace.
    now = time.monotonic()
    ends = bulletin.collect_ends(
        deadline_s=max(now + 1.0, (report.failure_seen_s or now) + request.grace_s + HEAR_S)
    )
    missing = set(range(bulletin.num_nodes)) - set(ends) - {report.node_rank}
    if missing and report.error is None:
        nodes = ", ".join(map(str, sorted(missing)))
        report.error = f"node rank {nodes} did not say how its ranks ended: the first failure may be there"
    return tuple(end for node, end in ends.items() if end is not None and node != report.node_rank)


def own_failure(request: LaunchRequest, ranks: RankProcesses, *, node_rank: int) -> RankOutcome | None:
    """The earliest failure of this machine, as the other machines are told of it. Ranks that have saved as
    they were asked to have not failed."""
    host = socket.gethostname()
    ends = ranks.ends()
    outcomes = [rank_outcome(end, node_rank=node_rank, host=host) for end in ends]
    first = earliest(causes(ends, outcomes))
    has_saved = request.stop_grace_s is not None and ranks.have_saved
    if ranks.interrupted is None or not outcomes or (has_saved and first is None):
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


def explain(request: LaunchRequest, report: AgentReport, error: Exception) -> str:
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
