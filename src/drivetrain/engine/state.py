"""What training changes: model, optimizer, scaler, average, and where it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from drivetrain.engine.ema import Ema
from drivetrain.engine.precision import Precision

BuildModel = Callable[[], nn.Module]
BuildOptimizer = Callable[[nn.Module], torch.optim.Optimizer]
LearningRateFactor = Callable[[int], float]


class TrainingModel:
    """What a training loop calls: the strategy's wrapper, in the run's precision and memory format."""

    def __init__(self, wrapped: nn.Module, precision: Precision, *, channels_last: bool) -> None:
        self.wrapped = wrapped
        self._precision = precision
        self._channels_last = channels_last

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._channels_last:
            args = tuple(_to_channels_last(item) for item in args)
        with self._precision.autocast():
            return self.wrapped(*args, **kwargs)

    def around(self, module: nn.Module) -> TrainingModel:
        """The same precision and memory format around another module: the bare one, for evaluation."""
        return TrainingModel(module, self._precision, channels_last=self._channels_last)


@dataclass(kw_only=True)
class TrainState:
    """The state of a run.

    Attributes:
        model: what the loop calls in training.
        module: the bare model, without wrappers: its names are those of checkpoints and exports.
        step: optimizer steps done; also the index of the next one.
        position: samples consumed by these steps, over all ranks.
        replicas: the ranks that hold the same parameters and buffers as this one, and see other samples;
            None: all ranks.
    """

    model: TrainingModel
    module: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: LearningRateFactor
    base_lrs: list[float]
    scaler: torch.amp.GradScaler | None
    ema: Ema | None
    step: int = 0
    position: int = 0
    replicas: dist.ProcessGroup | None = None

    def set_learning_rates(self) -> float:
        """Applies the schedule for the coming step; the first group's rate is returned for display."""
        factor = self.schedule(self.step)
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base * factor
        return self.base_lrs[0] * factor


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def has_convolutions(module: nn.Module) -> bool:
    return any(isinstance(m, nn.Conv2d) for m in module.modules())


def _to_channels_last(item: Any) -> Any:
    if isinstance(item, Tensor) and item.ndim == 4:
        return item.contiguous(memory_format=torch.channels_last)
    return item
