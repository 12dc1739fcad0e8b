"""Which GPUs a lease may be of, and who uses one without a lease."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from drivetrain.hardware.gpus import Gpu, choose_visible
from drivetrain.hardware.leases.error import LeaseError
from drivetrain.hardware.nvml import GpuProcess, Nvml
from drivetrain.hardware.processes import process_facts
from drivetrain.spec.errors import InputError
from drivetrain.spec.unknown import Unknown

# A CUDA context takes some hundred MiB; an idle GPU a few. Between them: a process of another pid namespace.
_NOBODYS_BYTES = 200 << 20


@dataclass(frozen=True, kw_only=True)
class LeasableGpu:
    """A whole GPU that may be leased. `index` is NVML's."""

    index: int
    uuid: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Pool:
    """What may be chosen from, in NVML's order, and why others may not. `source` says what set it."""

    gpus: tuple[LeasableGpu, ...]
    left_out: tuple[str, ...]
    source: str


def read_pool(nvml: Nvml, listed: str | None) -> Pool:
    """The whole GPUs of this machine, or those of them in `listed` (the user's CUDA_VISIBLE_DEVICES).

    A GPU that fails is left out, and said; the others stay.

    Raises:
        InputError: `listed` names a MIG instance.
        NvmlError: the GPUs cannot be counted.
    """
    handles = [nvml.handle(index) for index in range(nvml.num_gpus())]
    uuids = [nvml.uuid(handle) for handle in handles]
    splits = [nvml.is_split(handle) for handle in handles]
    seen = [
        Gpu(
            index=index,
            uuid=uuid if isinstance(uuid, str) else f"unread {index}",
            name=str(nvml.name(handle)),
            mig=nvml.mig(handle) if split is True else (),
        )
        for index, (handle, uuid, split) in enumerate(zip(handles, uuids, splits, strict=True))
    ]
    gpus, left_out = [], []
    for gpu in _wanted(listed, seen):
        uuid, split = uuids[gpu.index], splits[gpu.index]
        if isinstance(uuid, Unknown):
            left_out.append(f"GPU {gpu.index}: its UUID is {uuid}")
        elif isinstance(split, Unknown):
            left_out.append(f"GPU {gpu.index}: whether it is split (MIG) is {split}")
        elif split:
            left_out.append(f"GPU {gpu.index}: split into MIG instances, and leases are of whole GPUs")
        else:
            gpus.append(LeasableGpu(index=gpu.index, uuid=uuid, name=gpu.name))
    source = f"{len(seen)} on this machine" if listed is None else f"CUDA_VISIBLE_DEVICES={listed}"
    return Pool(gpus=tuple(gpus), left_out=tuple(left_out), source=source)


def used_outside(nvml: Nvml, gpu: LeasableGpu) -> str | None:
    """Why `gpu`, whose lease nobody holds, is not free after all; None where it is.

    Processes that only draw (a desktop) do not count. What could not be read is not taken for free.
    """
    facts = nvml.facts(gpu.index)
    if isinstance(facts.uuid, Unknown):
        return f"it answers no more: {facts.uuid.reason}"
    if facts.uuid != gpu.uuid:
        return f"its number is now {facts.uuid}'s"
    if isinstance(facts.processes, Unknown):
        return f"its processes are {facts.processes}"
    users = [process for process in facts.processes if process.kind != "graphics"]
    if users:
        return f"used outside any lease by {', '.join(map(_describe, users))}"
    used = facts.memory_used_bytes
    if not facts.processes and isinstance(used, int) and used > _NOBODYS_BYTES:
        return f"{used >> 20} MiB are used by processes that cannot be seen here (another container?)"
    return None


def _wanted(listed: str | None, seen: Sequence[Gpu]) -> list[Gpu]:
    if listed is None:
        return list(seen)
    whole = []
    for chosen in choose_visible(listed, seen)[0]:
        if isinstance(chosen, str):
            raise InputError(
                f"a lease with CUDA_VISIBLE_DEVICES={listed}",
                f"{chosen} is a MIG instance, and leases are of whole GPUs",
                "use the instance without a lease, or unset CUDA_VISIBLE_DEVICES to lease a whole GPU",
            )
        whole.append(chosen)
    return sorted(whole, key=lambda gpu: gpu.index)


def _describe(process: GpuProcess) -> str:
    facts = process_facts(process.pid)
    if isinstance(facts.user, Unknown) or isinstance(facts.command, Unknown):
        return f"pid {process.pid}"
    whose = "yours" if _is_own(process.pid) else facts.user
    return f"pid {process.pid} ({whose}: {facts.command[:60]})"


def _is_own(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()  # noqa: PTH116
    except OSError:
        return False


def too_few(wanted: int, pool: Pool) -> InputError | LeaseError | None:
    """The error where `wanted` GPUs can never be had from `pool`, however long one waits."""
    if wanted < 1:
        return InputError(f"a lease of {wanted} GPUs", "it must be at least 1", "give -n 1 or more")
    if wanted <= len(pool.gpus):
        return None
    found = f"only {len(pool.gpus)} may be leased ({'; '.join((pool.source, *pool.left_out))})"
    if wanted <= len(pool.gpus) + len(pool.left_out):
        return LeaseError(f"a lease of {wanted} GPUs", found, "ask for fewer, or repair the others first")
    return InputError(f"a lease of {wanted} GPUs", found, f"ask for at most {len(pool.gpus)}")
