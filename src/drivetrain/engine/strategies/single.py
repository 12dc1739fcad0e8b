"""One rank, no wrapper."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from drivetrain.engine.objective import Objective
from drivetrain.engine.settings import RunSettings
from drivetrain.engine.state import TrainState
from drivetrain.engine.step import StepScope, run_micro_batches
from drivetrain.engine.strategies.base import (
    Build,
    EvaluationForward,
    ForwardBackward,
    bare_forward,
    build_on_device,
    clip_by_norm,
    finish_state,
)
from drivetrain.spec.layout import Layout


class Single:
    """Plain training on one device."""

    name = "single"
    needs_group = False
    owns_backward = False

    def refusals(self, settings: RunSettings, layout: Layout, device: torch.device) -> list[str]:
        return []

    def setup(self, build: Build) -> TrainState:
        module, channels_last = build_on_device(build)
        return finish_state(build, module, module, channels_last=channels_last)

    def warm_up(self, state: TrainState, forward_backward: ForwardBackward | None) -> list[str]:
        return []

    def set_gradient_sync(self, state: TrainState, enabled: bool) -> None:
        pass  # nobody to reduce with

    def run_micro_batches(self, state: TrainState, scope: StepScope, objective: Objective) -> None:
        run_micro_batches(state, scope, objective)

    def clip(self, state: TrainState, max_norm: float) -> Tensor:
        return clip_by_norm(state, max_norm)

    def evaluation(self, state: TrainState) -> AbstractContextManager[EvaluationForward]:
        return nullcontext(bare_forward(state))
