"""Which GPUs a CUDA program started here would see, without starting CUDA: NVML and CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.hardware.nvml import Nvml, NvmlError, open_nvml
from drivetrain.spec.unknown import Unknown

_VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as NVML numbers it (by PCI bus; CUDA may order by speed). `mig`: its instances' UUIDs."""

    index: int
    uuid: str
    name: str
    mig: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VisibleGpus:
    """What a process would see.

    Attributes:
        count: Unknown where NVML failed, or cannot tell.
        uuids, names: of the visible ones, in order; empty where the count is Unknown.
        reason: what set the count, in one clause.
        count_by_files: for an Unknown count, what device files and CUDA_VISIBLE_DEVICES suggest; else None.
    """

    count: int | Unknown
    uuids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    reason: str
    count_by_files: int | None = None


def visible_gpus(
    environ: Mapping[str, str] | None = None, *, nvml: Any = None, dev: Path = Path("/dev")
) -> VisibleGpus:
    """The GPUs that CUDA would show a process with `environ` (this process's by default).

    Args:
        nvml: the module to ask, for tests; None imports nvidia-ml-py.
        dev: where device files are found, for the fallback.
    """
    listed = (os.environ if environ is None else environ).get(_VARIABLE)
    try:
        gpus = _all_gpus(nvml)
    except NvmlError as failure:
        if failure.means_no_driver:
            return VisibleGpus(count=0, reason=failure.reason)
        return _by_files(listed, dev, failure.reason)
    if listed is None:
        return _of(gpus, f"{len(gpus)} found by NVML, {_VARIABLE} is not set")
    chosen, stopped_at = choose_visible(listed, gpus)
    reason = f"{len(chosen)} of {len(gpus)} by {_VARIABLE}={listed}"
    if stopped_at is not None:
        reason += f" (the list ends at {stopped_at!r}, which names no GPU here)"
    return _of(chosen, reason)


def _of(gpus: Sequence[Gpu | str], reason: str) -> VisibleGpus:
    """`gpus` holds a UUID for each chosen MIG instance, and a Gpu for each whole one."""
    instances = [gpu for gpu in gpus if isinstance(gpu, str)]
    if instances:
        reason += "; CUDA gives a process one MIG instance" if len(gpus) > 1 else ""
        return VisibleGpus(count=1, uuids=(instances[0],), names=("MIG instance",), reason=reason)
    whole = [gpu for gpu in gpus if isinstance(gpu, Gpu)]
    split = next((gpu for gpu in whole if gpu.mig), None)
    if split is not None:
        why = f"GPU {split.index} is in MIG mode; name an instance ({split.mig[0]}) in {_VARIABLE}"
        return VisibleGpus(count=Unknown(why), reason=why, count_by_files=1)
    return VisibleGpus(
        count=len(whole),
        uuids=tuple(gpu.uuid for gpu in whole),
        names=tuple(gpu.name for gpu in whole),
        reason=reason,
    )


def choose_visible(listed: str, gpus: Sequence[Gpu]) -> tuple[list[Gpu | str], str | None]:
    """CUDA's rule: entries in order up to the first that names no GPU; one named twice leaves none at all.

    Returns the chosen, and the entry that ended the list (None where all were good).
    """
    chosen: list[Gpu | str] = []
    if listed.strip() == "":
        return chosen, None
    for entry in listed.split(","):
        found = _find(entry.strip(), gpus)
        if found is None:
            return chosen, entry
        if found in chosen:
            return [], entry
        chosen.append(found)
    return chosen, None


def _find(entry: str, gpus: Sequence[Gpu]) -> Gpu | str | None:
    if entry.startswith("MIG-"):
        instances = [uuid for gpu in gpus for uuid in gpu.mig if uuid.startswith(entry)]
        return instances[0] if len(instances) == 1 else None
    if entry.startswith("GPU-"):
        matches = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        return matches[0] if len(matches) == 1 else None
    # CUDA reads an index as C's strtoul does: leading digits count, what follows is ignored.
    digits = re.match(r"\+?(\d+)", entry)
    index = int(digits.group(1)) if digits else -1
    return gpus[index] if 0 <= index < len(gpus) else None


def _all_gpus(module: Any) -> list[Gpu]:
    with open_nvml(module) as nvml:
        return [_gpu(nvml, index) for index in range(nvml.num_gpus())]


def _gpu(nvml: Nvml, index: int) -> Gpu:
    handle = nvml.handle(index)
    uuid, name = nvml.uuid(handle), nvml.name(handle)
    for value in (uuid, name):
        if isinstance(value, Unknown):
            raise NvmlError(f"NVML failed while listing GPUs: {value.reason}")
    mig = nvml.mig(handle) if nvml.is_split(handle) is True else ()
    return Gpu(index=index, uuid=str(uuid), name=str(name), mig=mig)


def _by_files(listed: str | None, dev: Path, why: str) -> VisibleGpus:
    """NVML is there but fails: the driver's device files, cut by the variable's rule as far as it goes."""
    files = sorted(int(path.name[6:]) for path in dev.glob("nvidia[0-9]*") if path.name[6:].isdigit())
    count = len(files)
    if listed is not None and count:
        entries = [entry.strip() for entry in listed.split(",")] if listed.strip() else []
        fakes = [Gpu(index=at, uuid=f"unread {at}", name="") for at in range(count)]
        if any(entry.startswith(("GPU-", "MIG-")) for entry in entries):
            count = min(count, len(entries))  # UUIDs cannot be held against device files
        else:
            count = len(choose_visible(listed, fakes)[0])
    return VisibleGpus(count=Unknown(why), reason=f"{why}; {len(files)} device files", count_by_files=count)
