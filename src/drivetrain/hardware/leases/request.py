"""From what a user asks for to a lease: the pool by NVML and CUDA_VISIBLE_DEVICES, then the locks."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drivetrain.hardware.leases.by_wiring import choose_by_wiring
from drivetrain.hardware.leases.error import LeaseError
from drivetrain.hardware.leases.folder import lease_folder
from drivetrain.hardware.leases.holder import Holder
from drivetrain.hardware.leases.inherited import inherited_files
from drivetrain.hardware.leases.pool import read_pool, too_few, used_outside
from drivetrain.hardware.leases.take import Choose, Lease, Wish, take
from drivetrain.hardware.nvml import NvmlError, open_nvml
from drivetrain.hardware.processes import user_name
from drivetrain.spec.errors import InputError


def lease_gpus(
    num_gpus: int,
    *,
    environ: Mapping[str, str],
    command: Sequence[str],
    for_s: float | None = None,
    job: str | None = None,
    is_waiting: bool = False,
    how_to_wait: str = "--wait",
    choose: Choose | None = None,
    note: Callable[[str], None] = lambda _: None,
    module: Any = None,
) -> Lease:
    """Leases `num_gpus` whole GPUs of this machine for `command`.

    Args:
        environ: CUDA_VISIBLE_DEVICES is the pool; DRIVETRAIN_LEASES the folder of the locks.
        for_s: what the lease says of its length; ending the command is the caller's to do.
        job: the run or job that it is for; None takes Slurm's from `environ`.
        is_waiting: wait in line, without a limit, rather than fail where too few are free.
        how_to_wait: what the user is told to write for that.
        choose: which of the free ones; None takes the best-linked.
        note: gets lines about the wait.
        module: what to ask in nvidia-ml-py's place, for tests.

    Raises:
        InputError: that many can never be had here; a MIG instance is visible; this is within a lease.
        LeaseError: too few are free; NVML fails; the locks cannot be used.
    """
    if inherited_files(environ):
        raise InputError(
            f"a lease of {num_gpus} GPUs",
            "this command already runs within a lease, and has its GPUs",
            "ask for all of them in the outer lease, and for none in here",
        )
    slurm = environ.get("SLURM_JOB_ID")
    holder = Holder(
        user=user_name(os.getuid()),
        pid=os.getpid(),
        command=shlex.join(command),
        since_s=0.0,
        job=job or (f"Slurm job {slurm}" if slurm else None),
    )
    try:
        with open_nvml(module) as nvml:
            pool = read_pool(nvml, environ.get("CUDA_VISIBLE_DEVICES"))
            if (problem := too_few(num_gpus, pool)) is not None:
                raise problem
            return take(
                Wish(num_gpus=num_gpus, holder=holder, for_s=for_s),
                pool,
                lease_folder(environ),
                used_outside=lambda gpu: used_outside(nvml, gpu),
                choose=choose or choose_by_wiring(module),
                is_waiting=is_waiting,
                how_to_wait=how_to_wait,
                note=note,
            )
    except NvmlError as error:
        kind = InputError if error.means_no_driver else LeaseError
        raise kind(f"a lease of {num_gpus} GPUs", error.reason, "see what nvidia-smi says") from error
