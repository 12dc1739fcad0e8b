"""This rank's place in the process group: device, groups, and how they are opened and closed."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from drivetrain.spec.errors import InputError
from drivetrain.spec.rank_env import RankEnv


@dataclass(frozen=True, kw_only=True)
class HostGroup:
    """All ranks, talking in host memory (gloo) without waiting behind anything else. `group`: None alone."""

    rank: int
    size: int
    group: dist.ProcessGroup | None

    def gather(self, item: Any) -> list[Any]:
        """`item` of every rank, in rank order. Called by all ranks, in the same order; waits for all."""
        if self.group is None:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item, group=self.group)
        return items


@dataclass(frozen=True, kw_only=True)
class World:
    """Where this rank computes and with whom it talks.

    Attributes:
        control: a gloo group of all ranks for small host messages (control word, weights, votes); separate
            from the group that reduces gradients, so that neither waits in the other's queue. None alone.
        owns_group: whether `close` destroys the process group (not when the caller had made it).
    """

    env: RankEnv
    device: torch.device
    control: dist.ProcessGroup | None
    owns_group: bool

    @property
    def rank(self) -> int:
        return self.env.rank

    @property
    def size(self) -> int:
        return self.env.world_size

    def gather(self, item: Any) -> list[Any]:
        """`item` of every rank, in rank order. Called by all ranks, in the same order; waits for all."""
        return HostGroup(rank=self.rank, size=self.size, group=self.control).gather(item)

    def new_host_group(self, timeout_s: float) -> HostGroup:
        """A group of its own for talk that nothing else is to wait behind. Called by all ranks, in the same
        order."""
        group = None
        if self.size > 1:
            made = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
            assert isinstance(made, dist.ProcessGroup)
            group = made
        return HostGroup(rank=self.rank, size=self.size, group=group)

    def close(self) -> None:
        """Leaves the process group. Called by all ranks at the end of a good run; a failed one just exits."""
        if self.owns_group and dist.is_initialized():
            dist.destroy_process_group()


def open_world(env: RankEnv, *, device: str, timeout_s: float, needs_group: bool = False) -> World:
    """Chooses this rank's device and joins the process group. Called by all ranks; waits for all.

    One rank alone gets a group only where `needs_group`.

    Raises:
        InputError: a GPU was asked for that this rank does not have, or there is no address to meet at.
    """
    chosen = _choose_device(env, device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if env.world_size == 1 and not needs_group:
        return World(env=env, device=chosen, control=None, owns_group=False)
    owns_group = not dist.is_initialized()
    timeout = timedelta(seconds=timeout_s)
    if owns_group:
        # The CPU half is there on GPUs too: object collectives and checkpoints then cost no GPU time.
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(
            backend,
            **_meeting(env),
            rank=env.rank,
            world_size=env.world_size,
            timeout=timeout,
            device_id=chosen if chosen.type == "cuda" else None,
        )
    if env.world_size == 1:
        return World(env=env, device=chosen, control=None, owns_group=owns_group)
    control = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(control, dist.ProcessGroup)
    return World(env=env, device=chosen, control=control, owns_group=owns_group)


def _meeting(env: RankEnv) -> dict[str, Any]:
    return {"store": HashStore()} if env.world_size == 1 else {"init_method": _meeting_point(env, os.environ)}


def _choose_device(env: RankEnv, device: str) -> torch.device:
    num_gpus = torch.cuda.device_count() if device != "cpu" else 0
    if device == "cpu" or (device == "auto" and num_gpus == 0):
        return torch.device("cpu")
    if env.local_rank >= num_gpus:
        raise InputError(
            f"{env.local_world_size} processes on {env.host}, one GPU each",
            f"local rank {env.local_rank} has none: torch sees {num_gpus} GPUs"
            f" (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')})",
            f"--nproc-per-node {num_gpus}" if num_gpus else "--device cpu, or repair the driver",
        )
    return torch.device("cuda", env.local_rank)


# What the MPI launchers put into each rank's environment that is the same for all ranks of one job on one
# host and differs between jobs: names of the job and addresses of its daemon.
_JOB_VARIABLES = (
    "OMPI_MCA_ess_base_jobid",
    "OMPI_MCA_orte_ess_jobid",
    "PMIX_NAMESPACE",
    "PMIX_SERVER_URI2",
    "PMIX_SERVER_URI41",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
)


def _meeting_point(env: RankEnv, environ: Mapping[str, str]) -> str:
    """Where the ranks find each other: the launcher's address, else (mpirun, srun on one host) a file."""
    if env.master_addr and env.master_port:
        return "env://"
    job = [f"{name}={environ[name]}" for name in _JOB_VARIABLES if name in environ]
    if not job or env.local_world_size != env.world_size:
        raise InputError(
            f"{env.world_size} ranks started by {env.launcher}",
            "MASTER_ADDR and MASTER_PORT are not set, and the ranks are on several hosts"
            if job
            else "MASTER_ADDR and MASTER_PORT are not set",
            "mpirun -x MASTER_ADDR=<host of rank 0> -x MASTER_PORT=29500 …, or use drivetrain launch",
        )
    digest = hashlib.sha256("\n".join(job).encode()).hexdigest()[:20]
    folder = Path(tempfile.gettempdir()) / f"drivetrain-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise InputError(str(folder), "it belongs to another user", "set TMPDIR to a folder of your own")
    return f"file://{folder}/{digest}"
