"""What every strategy must answer, and the placement that most of them share."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.engine.blocks import blocks_of, checkpoint_activations
from drivetrain.engine.ema import Ema
from drivetrain.engine.objective import call_model
from drivetrain.engine.precision import Precision
from drivetrain.engine.settings import RunSettings
from drivetrain.engine.state import (
    BuildModel,
    BuildOptimizer,
    LearningRateFactor,
    TrainingModel,
    TrainState,
    has_convolutions,
)
from drivetrain.engine.world import World
from drivetrain.spec.errors import InputError
from drivetrain.spec.layout import Layout

if TYPE_CHECKING:
    from drivetrain.engine.objective import Objective
    from drivetrain.engine.step import StepScope

ForwardBackward = Callable[[], None]
EvaluationForward = Callable[[Any], Any]
"""From what `Objective.inputs` gives to the model's output."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """Everything a strategy needs to make a `TrainState`: factories, not objects, because some strategies
    must have the model on the meta device, cut it into stages, or build their own optimizer."""

    model: BuildModel
    optimizer: BuildOptimizer
    schedule: LearningRateFactor
    settings: RunSettings
    precision: Precision
    world: World
    layout: Layout


class Strategy(Protocol):
    """How a model is placed on ranks and stepped.

    Gradients are averaged over data ranks by whatever reduces them (DDP and FSDP do); losses are multiplied
    by `layout.num_data_ranks` beforehand.
    """

    name: str
    needs_group: bool
    """Whether it wants a process group even on one rank."""
    owns_backward: bool
    """Whether it runs forward and backward itself, so that the inner loop cannot be the user's own."""

    def refusals(self, settings: RunSettings, layout: Layout, device: torch.device) -> list[str]:
        """Why these settings cannot run under it; empty if they can. Asked before anything starts."""

    def setup(self, build: Build) -> TrainState:
        """Builds model and optimizer. Called by all ranks."""

    def warm_up(self, state: TrainState, forward_backward: ForwardBackward | None) -> list[str]:
        """Called by all ranks before the first step of every start, resumed or not, with a function that
        computes some gradients through `state.model`. Whatever the strategy settles from its first steps
        (DDP's buckets) is then settled before training, so that a resumed run reduces exactly as an
        undisturbed one. None where the inner loop is the user's own, and nothing can be computed beforehand.
        Returns notes to print."""

    def set_gradient_sync(self, state: TrainState, enabled: bool) -> None:
        """Whether the next micro-batch's backward reduces gradients over ranks."""

    def run_micro_batches(self, state: TrainState, scope: StepScope, objective: Objective) -> None:
        """Forward and backward of one step. Pipelines own this; the others call `step.run_micro_batches`."""

    def clip(self, state: TrainState, max_norm: float) -> Tensor:
        """Clips to the global norm; returns the norm before clipping, a scalar on the device."""

    def evaluation(self, state: TrainState) -> AbstractContextManager[EvaluationForward]:
        """Surrounds the forward passes of an evaluation, which no backward follows, and gives the function
        that does one. Called by all ranks equally often, with equally many samples on ranks that see the same
        ones; the output is that of the whole model where `layout.is_counted`, and anything elsewhere."""


def built_model(build: Build) -> nn.Module:
    """The model as the factory makes it after the run's seed: the same weights on every rank; with
    SyncBatchNorm where it is set.

    Raises:
        InputError: the factory made no model.
    """
    settings = build.settings
    random.seed(settings.seed)
    np.random.seed(settings.seed % 2**32)
    torch.manual_seed(settings.seed)
    made: Any = build.model()
    if not isinstance(made, nn.Module):
        raise InputError("build_model()", f"it returned a {type(made).__name__}", "return a torch.nn.Module")
    module: nn.Module = made
    if settings.sync_batchnorm and build.world.size > 1:
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    return module


def build_on_device(build: Build) -> tuple[nn.Module, bool]:
    """The model on this rank's device, in the memory format as set. Returns it and whether that is
    channels_last."""
    settings, device = build.settings, build.world.device
    module = built_model(build)
    checkpoint_activations(blocks_of(module), every=settings.activation_checkpointing)
    wanted = settings.channels_last
    channels_last = (device.type == "cuda" and has_convolutions(module)) if wanted is None else wanted
    module = module.to(device)
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
    if settings.compile:
        module.compile()
    return module, channels_last


def finish_state(build: Build, module: nn.Module, wrapped: nn.Module, *, channels_last: bool) -> TrainState:
    """The state around a placed model: optimizer, scaler, average."""
    optimizer = build.optimizer(module)
    _check_optimizer(optimizer, module)
    settings = build.settings
    return TrainState(
        model=TrainingModel(wrapped, build.precision, channels_last=channels_last),
        module=module,
        optimizer=optimizer,
        schedule=build.schedule,
        base_lrs=[float(group["lr"]) for group in optimizer.param_groups],
        scaler=torch.amp.GradScaler(build.world.device.type) if build.precision.uses_scaler else None,
        ema=Ema(module, settings.ema_decay) if settings.ema_decay is not None else None,
    )


def _check_optimizer(optimizer: object, module: nn.Module) -> None:
    asked = "build_optimizer(model)"
    if not isinstance(optimizer, torch.optim.Optimizer):
        found = f"it returned a {type(optimizer).__name__}"
        raise InputError(asked, found, "return a torch.optim.Optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError(asked, "LBFGS evaluates the loss several times a step", "use SGD or AdamW")
    own = {id(parameter) for parameter in module.parameters()}
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = sum(id(parameter) not in own for parameter in given)
    if foreign:
        found = f"{foreign} of its {len(given)} parameters are not of the model that it was given"
        raise InputError(asked, found, "build it from the parameters of its argument")


def bare_forward(state: TrainState) -> EvaluationForward:
    """Calls the model without its wrapper, in the run's precision."""
    model = state.model.around(state.module)
    return lambda inputs: call_model(model, inputs)


def clip_by_norm(state: TrainState, max_norm: float) -> Tensor:
    return torch.nn.utils.clip_grad_norm_(state.module.parameters(), max_norm)
