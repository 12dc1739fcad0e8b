"""What is trained, where and how: the first thing that a run says."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import numpy as np
import torch

from drivetrain._version import __version__
from drivetrain.engine.settings import RunSettings
from drivetrain.spec.batch import BatchPlan
from drivetrain.telemetry.events import RunStarted
from drivetrain.train.stream import RunStream


def run_started(
    settings: RunSettings,
    plan: BatchPlan,
    stream: RunStream,
    *,
    strategy: str,
    precision: str,
    devices: tuple[str, ...],
    notes: tuple[str, ...],
) -> RunStarted:
    """The event that opens a start of the run; `devices` are named in rank order."""
    return RunStarted(
        name=settings.name,
        strategy=strategy,
        devices=devices,
        precision=precision,
        total_steps=stream.source.steps or 0,
        num_samples=stream.num_samples,
        global_batch=settings.global_batch,
        accumulation=plan.accumulation,
        micro_batch=plan.micro_batch,
        world_size=len(devices),
        shares=tuple(len(plan.share(rank)) for rank in range(plan.num_data_ranks)),
        batch=plan.describe(),
        loader=stream.source.loader.reason,
        notes=notes,
        start_step=stream.next_step,
        sample_unit=stream.source.sample_unit,
        tokens_per_sample=getattr(stream.source.dataset, "tokens_per_sample", None),
        versions=_versions(),
    )


def device_name(device: torch.device) -> str:
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "cpu"


def _versions() -> dict[str, str]:
    """What `drivetrain doctor --against` compares a later day with; "" for what this build lacks."""
    has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    return {
        "drivetrain": __version__,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "nccl": _nccl_version() if has_nccl else "",
        "cudnn": _cudnn_version(),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "driver": _driver_version(),
    }


def _nccl_version() -> str:
    return ".".join(str(part) for part in torch.cuda.nccl.version()[:3])  # type: ignore[no-untyped-call]


def _cudnn_version() -> str:
    number = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    if number is None:
        return ""
    # 92400 is 9.24.0; up to version 8 it was 8902 for 8.9.2.
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _driver_version() -> str:
    """Of NVIDIA's loaded kernel module; "" where there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return ""
    match = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", text)
    return match.group() if match else ""
