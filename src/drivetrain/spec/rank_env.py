"""Who am I among the ranks: read once from what torchrun, MPI, Slurm or nobody put into the environment."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from drivetrain.spec.errors import InputError

# Launchers differ by the names of their variables, not by code. The first row whose `rank` is set wins.
# Kubeflow sets PET_* for torchrun itself, which then sets RANK for the workers.
_TABLE: tuple[tuple[str, dict[str, str]], ...] = (
    (
        "torchrun",
        {
            "rank": "RANK",
            "world_size": "WORLD_SIZE",
            "local_rank": "LOCAL_RANK",
            "local_world_size": "LOCAL_WORLD_SIZE",
            "node_rank": "GROUP_RANK",
        },
    ),
    (
        "openmpi",
        {
            "rank": "OMPI_COMM_WORLD_RANK",
            "world_size": "OMPI_COMM_WORLD_SIZE",
            "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
            # OMPI_COMM_WORLD_NODE_RANK is the rank within the node over all jobs, not the node's number.
            "local_world_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
        },
    ),
    (
        "slurm",
        {
            "rank": "SLURM_PROCID",
            "world_size": "SLURM_NTASKS",
            "local_rank": "SLURM_LOCALID",
            "local_world_size": "SLURM_NTASKS_PER_NODE",
            "node_rank": "SLURM_NODEID",
        },
    ),
    (
        "pmi",
        {
            "rank": "PMI_RANK",
            "world_size": "PMI_SIZE",
            "local_rank": "MPI_LOCALRANKID",
            "local_world_size": "MPI_LOCALNRANKS",
        },
    ),
)


@dataclass(frozen=True, kw_only=True)
class RankEnv:
    """One rank's place in the job.

    `launcher` is the row of the table it was read from, or "none" for a process started by hand.
    `master_addr`/`master_port` are None where the launcher gave none (mpirun, srun, none).
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    master_addr: str | None = None
    master_port: int | None = None
    restart_count: int = 0
    launcher: str = "none"
    host: str = ""

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def read_rank_env(environ: Mapping[str, str]) -> RankEnv:
    """Reads the rank from the environment `environ`.

    Raises:
        InputError: a variable is set but is no integer, or rank and size contradict each other.
    """
    for launcher, names in _TABLE:
        if names["rank"] not in environ:
            continue
        if launcher == "slurm" and not _is_slurm_step(environ):
            continue
        return _read_row(environ, launcher, names)
    return RankEnv(host=socket.gethostname())


def _is_slurm_step(environ: Mapping[str, str]) -> bool:
    """Batch scripts and salloc's shell also carry SLURM_PROCID=0; only a step started by srun has a rank."""
    return environ.get("SLURM_STEP_ID", "").isdigit() and environ.get("SLURM_STEP_NUM_TASKS") is not None


def _read_row(environ: Mapping[str, str], launcher: str, names: Mapping[str, str]) -> RankEnv:
    def integer(variable: str, default: int) -> int:
        text = environ.get(variable, "")
        if text == "":
            return default
        # Slurm writes "4(x2)" for four tasks on each of two nodes.
        try:
            return int(text.split("(")[0])
        except ValueError as error:
            raise InputError(
                f"{variable}={text!r} in the environment",
                f"{launcher} sets this to an integer; this is none",
                f"start through the launcher, or unset {variable}",
            ) from error

    rank = integer(names["rank"], 0)
    world_size = integer(names["world_size"], 1)
    if not 0 <= rank < world_size:
        raise InputError(
            f"{names['rank']}={rank} with {names['world_size']}={world_size}",
            "a rank must be at least 0 and below the world size",
            f"unset both to run as one process, or start through {launcher}",
        )
    port = environ.get("MASTER_PORT", "")
    local_world_size = integer(names["local_world_size"], world_size)
    return RankEnv(
        rank=rank,
        world_size=world_size,
        local_rank=integer(names["local_rank"], rank),
        local_world_size=local_world_size,
        node_rank=integer(names.get("node_rank", ""), rank // max(local_world_size, 1)),
        master_addr=environ.get("MASTER_ADDR") or None,
        master_port=int(port) if port.isdigit() else None,
        restart_count=integer("TORCHELASTIC_RESTART_COUNT", 0),
        launcher=launcher,
        host=socket.gethostname(),
    )
