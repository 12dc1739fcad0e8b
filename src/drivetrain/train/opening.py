"""What is trained, where and how: the first thing that a run says."""

from __future__ import annotations

import torch

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
    )


def device_name(device: torch.device) -> str:
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "cpu"
