"""What a pipeline can run and what not: arithmetic of stages and micro-batches, before anything starts."""

from __future__ import annotations

import torch

from drivetrain.engine.settings import PipelineSchedule, RunSettings
from drivetrain.spec.batch import plan_batches
from drivetrain.spec.errors import InputError
from drivetrain.spec.layout import Layout

_STAGES_PER_RANK = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zero_bubble": 2}


def stages_per_rank(settings: RunSettings) -> int:
    return settings.pipeline_stages_per_rank or _STAGES_PER_RANK[settings.pipeline_schedule]


def place_of(stage: int, num_places: int, schedule: PipelineSchedule) -> int:
    """Where in the pipeline a stage is held: in turn, and for zero bubbles there and back again (a V), so
    that the first rank has the first stage and the last."""
    if schedule == "zero_bubble":
        return stage if stage < num_places else 2 * num_places - 1 - stage
    return stage % num_places


def last_place(layout: Layout, settings: RunSettings) -> int:
    """Where the last stage is, and with it the loss."""
    num_stages = layout.pp * stages_per_rank(settings)
    return place_of(num_stages - 1, layout.pp, settings.pipeline_schedule)


def refusals(settings: RunSettings, layout: Layout, device: torch.device) -> list[str]:
    """Why these settings cannot run in a pipeline; empty if they can."""
    del device  # the same on all
    schedule, per_rank = settings.pipeline_schedule, stages_per_rank(settings)
    reasons = []
    if layout.tp > 1:
        reasons.append(f"tp {layout.tp}: layers inside a stage are not cut; use strategy tensor or fsdp")
    if settings.precision == "fp16":
        reasons.append(FP16)
    if settings.compile and schedule == "zero_bubble":
        reasons.append(
            "compile with pipeline.schedule zero_bubble: a compiled backward cannot be split into those of"
            " inputs and weights; use another schedule, or leave compile off"
        )
    if settings.activation_checkpointing == "selective" and schedule == "zero_bubble":
        reasons.append(
            "activation_checkpointing selective with pipeline.schedule zero_bubble: what is selected is kept"
            " for one backward, and there are two; use a number, or another schedule"
        )
    if settings.sync_batchnorm:
        reasons.append("sync_batchnorm: batch statistics are those of a micro-batch; use GroupNorm")
    if settings.channels_last:
        reasons.append("channels_last: what stages send has one memory format; leave it off")
    if settings.fsdp_cpu_offload:
        reasons.append("fsdp.cpu_offload: a stage's weights stay on the device; use strategy fsdp")
    wanted = {"gpipe": "1", "1f1b": "1", "zero_bubble": "2"}.get(schedule)
    if wanted is not None and per_rank != int(wanted):
        what = f"pipeline.stages_per_rank {per_rank} with pipeline.schedule {schedule}"
        reasons.append(f"{what}: it runs {wanted} a rank; interleaved runs any number from 2")
    elif schedule == "interleaved" and per_rank < 2:
        reasons.append("pipeline.stages_per_rank 1 with pipeline.schedule interleaved: use 1f1b")
    reasons += _too_few_micro_batches(settings, layout)
    return reasons


FP16 = "fp16: the stages would have to agree on the scale of the loss; use bf16 or fp32"


def _too_few_micro_batches(settings: RunSettings, layout: Layout) -> list[str]:
    try:
        num = _num_micro_batches(settings, layout, settings.micro_batch)
    except InputError:
        return []  # told of anyway, as of every strategy
    schedule = settings.pipeline_schedule
    if _fits(schedule, num, layout.pp):
        return []
    share = -(-settings.global_batch // layout.num_data_ranks)
    sizes = range(share, 0, -1)  # of sizes that make as many, the least stays
    good = {
        n: size
        for size in sizes
        if _fits(schedule, n := _num_micro_batches(settings, layout, size), layout.pp)
    }
    nearest = min(good, key=lambda n: abs(n - num), default=None)
    needs = {
        "1f1b": f"at least as many as stages, {layout.pp}",
        "interleaved": f"a multiple of their rounds over {layout.pp} ranks ({max(1, num // layout.pp)})",
    }[schedule]
    what = f"pipeline.schedule {schedule} with {num} micro-batches a step: it needs {needs}"
    if nearest is None:
        return [
            f"{what}, and a rank's share is {share} samples; use schedule gpipe, or a larger global batch"
        ]
    return [f"{what}; --micro-batch {good[nearest]} makes it {nearest}"]


def _num_micro_batches(settings: RunSettings, layout: Layout, micro_batch: int | None) -> int:
    return plan_batches(
        global_batch=settings.global_batch,
        num_data_ranks=layout.num_data_ranks,
        micro_batch=micro_batch,
        num_stages=layout.pp,
    ).accumulation


def _fits(schedule: str, num_micro_batches: int, num_ranks: int) -> bool:
    if schedule == "1f1b":
        return num_micro_batches >= num_ranks
    if schedule == "interleaved":
        return num_micro_batches % max(1, num_micro_batches // num_ranks) == 0
    return True
