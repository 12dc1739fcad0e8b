"""What is to be launched, as one typed request that every launcher takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

DEADLINE_VARIABLE = "DRIVETRAIN_DEADLINE"
"""Seconds since the epoch by which a job must have saved and ended; set by the launcher for its ranks."""


@dataclass(frozen=True, kw_only=True)
class Pinning:
    """Where one local rank runs: its CPUs (none: anywhere), and the NUMA node whose memory it takes first."""

    cpus: tuple[int, ...] = ()
    numa_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """One job on one or several machines, seen from one of them.

    Attributes:
        command: what each rank runs, as an argument list (never a shell string).
        nproc_per_node: processes on this machine.
        min_nodes, max_nodes: equal unless the job is elastic (torchrun's `--nnodes MIN:MAX`).
        node_rank: this machine's rank; None lets the rendezvous number the machines.
        master_addr, master_port: where node 0 listens; None on one machine, where a free port is chosen.
        rdzv_endpoint, rdzv_id: torchrun's c10d rendezvous between machines.
        max_restarts: how often all ranks may be started anew after a failure.
        folder: where `logs/` and `launch/outcome.json` are written (a run directory).
        environment: variables set for every rank, on top of the launcher's own environment.
        pinnings: by local rank, where its process runs; empty where ranks run anywhere.
        grace_s: from the first failure, how long the other ranks may take to end before SIGKILL.
        failure_grace_s: the same where others are known to have nothing to save after a failure; None takes
            `grace_s`.
        imports: the file in which ranks name the modules that they import, once they are up; ranks that are
            restarted then come from a process that has imported them. None: they start as the first did.
        stop_grace_s: how long ranks that were asked to stop may take to save; None: they are not known to
            save anything, and have `grace_s`.
    """

    command: tuple[str, ...]
    folder: Path
    nproc_per_node: int = 1
    min_nodes: int = 1
    max_nodes: int = 1
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    rdzv_endpoint: str | None = None
    rdzv_id: str | None = None
    local_addr: str | None = None
    max_restarts: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    pinnings: tuple[Pinning, ...] = ()
    grace_s: float = 5.0
    failure_grace_s: float | None = None
    imports: Path | None = None
    stop_grace_s: float | None = None
    monitor_interval_s: float = 0.1

    @property
    def is_elastic(self) -> bool:
        """Whether the job goes on with fewer or more machines."""
        return self.min_nodes < self.max_nodes

    @property
    def is_single_node(self) -> bool:
        return self.max_nodes == 1
