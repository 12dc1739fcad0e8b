"""The variables that tell a rank who it is, in torchrun's names, and the number of threads it may use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from drivetrain.spec.run_dir import RUN_DIR_VARIABLE


@dataclass(frozen=True, kw_only=True)
class Place:
    """One rank's place in one attempt of the job. `attempt` counts from 0."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    master_addr: str
    master_port: int
    attempt: int
    max_restarts: int
    run_id: str
    store_is_hosted: bool
    error_file: str
    run_dir: str

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What torchrun sets for this rank; `environ` is the launcher's own environment."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.node_rank),
            "GROUP_WORLD_SIZE": str(self.num_nodes),
            "ROLE_NAME": "default_role",
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
            "TORCHELASTIC_RESTART_COUNT": str(self.attempt),
            "TORCHELASTIC_MAX_RESTARTS": str(self.max_restarts),
            "TORCHELASTIC_RUN_ID": self.run_id,
            # "True" tells torch that the store on MASTER_PORT is already there: rank 0 must not host one.
            "TORCHELASTIC_USE_AGENT_STORE": str(self.store_is_hosted),
            "TORCHELASTIC_ERROR_FILE": self.error_file,
            RUN_DIR_VARIABLE: self.run_dir,
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        }


def launcher_environment() -> dict[str, str]:
    """The launcher's own environment: the one place where this room reads it."""
    return dict(os.environ)


def thread_variables(nproc_per_node: int, environ: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """OMP_NUM_THREADS for each rank where the user has set none, and the line that says why.

    Without it every rank would start a thread for every core, and the ranks slow each other down.
    """
    if environ.get("OMP_NUM_THREADS"):
        return {}, None
    from drivetrain.hardware.cpu import usable_cpus

    cpus = usable_cpus()
    threads = max(1, cpus.count // max(1, nproc_per_node))
    reason = (
        f"OMP_NUM_THREADS={threads} for each rank: {cpus.count} usable CPUs ({cpus.reason}) shared by "
        f"{nproc_per_node} processes; set it yourself to change it"
    )
    return {"OMP_NUM_THREADS": str(threads)}, reason
