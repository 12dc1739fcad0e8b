"""torch's nn.DataParallel: one process that drives several GPUs by threads. The measured baseline."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.engine.objective import Objective, call_model
from drivetrain.engine.precision import Precision
from drivetrain.engine.settings import RunSettings
from drivetrain.engine.state import TrainState
from drivetrain.engine.step import StepScope, run_micro_batches
from drivetrain.engine.strategies.base import (
    Build,
    EvaluationForward,
    ForwardBackward,
    build_on_device,
    clip_by_norm,
    finish_state,
)
from drivetrain.spec.layout import Layout


class DataParallel:
    """One rank with all visible GPUs: every forward copies the model to each, scatters the micro-batch by
    samples, and gathers the outputs on the first, where the loss, its exact sum and the optimizer are.

    It is here to be measured against: the copies, the gathering and Python's lock stand in every step, and
    the first GPU holds more than the others. On one device it is the plain module.

    - The micro-batch is that of all GPUs together.
    - Running statistics of norms are those of the first GPU's samples, as nn.DataParallel leaves them.
    """

    name = "data_parallel"
    needs_group = False
    owns_backward = False

    def refusals(self, settings: RunSettings, layout: Layout, device: torch.device) -> list[str]:
        reasons = []
        if settings.fsdp_cpu_offload or settings.fsdp_reshard_after_forward is not None:
            reasons.append("fsdp settings: every GPU has all weights; use strategy fsdp, or leave them out")
        # Both hang on the module as it was built, and the copies would compute with that one's weights.
        if settings.compile:
            reasons.append("compile: nn.DataParallel copies the model every step; leave it off, or use ddp")
        if settings.activation_checkpointing:
            what = "activation_checkpointing: nn.DataParallel copies the model every step"
            reasons.append(f"{what}; leave it at 0, or use ddp")
        if settings.sync_batchnorm:
            reasons.append("sync_batchnorm: it needs a process for each GPU; leave it off, or use ddp")
        return reasons

    def setup(self, build: Build) -> TrainState:
        module, channels_last = build_on_device(build)
        self._devices = _devices(build.world.device)
        wrapped = module
        if len(self._devices) > 1:
            wrapped = nn.DataParallel(_InPrecision(module, build.precision), device_ids=self._devices)
        return finish_state(build, module, wrapped, channels_last=channels_last)

    def warm_up(self, state: TrainState, forward_backward: ForwardBackward | None) -> list[str]:
        count = len(self._devices)
        if count > 1:
            what = f"each micro-batch is scattered over {count} GPUs by this one process"
            return [f"data_parallel: {what}; rates of a rank are those of all {count}"]
        where = "the CPU" if not count else "one GPU"
        return [f"data_parallel on {where} is the plain module: there is nothing to scatter over"]

    def set_gradient_sync(self, state: TrainState, enabled: bool) -> None:
        pass  # gradients of the copies are added in the backward of each micro-batch

    def run_micro_batches(self, state: TrainState, scope: StepScope, objective: Objective) -> None:
        run_micro_batches(state, scope, objective)

    def clip(self, state: TrainState, max_norm: float) -> Tensor:
        return clip_by_norm(state, max_norm)

    def evaluation(self, state: TrainState) -> AbstractContextManager[EvaluationForward]:
        # On all GPUs: a micro-batch may be too large for one.
        return nullcontext(lambda inputs: call_model(state.model, inputs))


class _InPrecision(nn.Module):
    """The model in the run's precision in whatever thread: nn.DataParallel's threads know that autocast is
    on, but not its type, and would compute in fp16 where bf16 was asked for."""

    def __init__(self, module: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.module = module
        self._precision = precision

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self._precision.autocast():
            return self.module(*args, **kwargs)


def _devices(device: torch.device) -> list[int]:
    """All visible GPUs, this rank's first, where outputs are gathered; empty on the CPU."""
    if device.type != "cuda":
        return []
    others = [index for index in range(torch.cuda.device_count()) if index != device.index]
    return [device.index, *others]
