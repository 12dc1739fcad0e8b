"""Optimizers and schedules as data, so that a strategy can build its own from the same description."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from drivetrain.spec.errors import InputError


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """An optimizer, described. Calling it with a model builds it.

    Attributes:
        decay_norms_and_biases: whether weight decay also acts on parameters with fewer than two dims
            (biases, the scales of norms). Leaving them out is the usual choice (He et al. 2019, 1812.01187).
    """

    name: Literal["sgd", "adamw"] = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decay_norms_and_biases: bool = False

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        groups = self.parameter_groups(model)
        if not groups:
            raise InputError(
                "the optimizer", "the model has no parameter that requires a gradient", "unfreeze"
            )
        parameters = [parameter for group in groups for parameter in group["params"]]
        # One kernel for all parameters, on CUDA and on the CPU alike.
        fused = all(p.device.type in ("cuda", "cpu") for p in parameters)
        if self.name == "sgd":
            # torch has no such kernel for sharded parameters.
            fused = fused and not any(isinstance(p, DTensor) for p in parameters)
            return torch.optim.SGD(
                groups, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov, fused=fused
            )
        return torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=fused)

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Parameters with and without weight decay, in the model's order."""
        decayed: list[nn.Parameter] = []
        plain: list[nn.Parameter] = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                takes_decay = self.decay_norms_and_biases or parameter.ndim >= 2
                (decayed if takes_decay else plain).append(parameter)
        groups = (
            {"params": decayed, "weight_decay": self.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        )
        return [group for group in groups if group["params"]]


def step_unless(optimizer: torch.optim.Optimizer, is_bad: Tensor) -> None:
    """The optimizer's step, or nothing where `is_bad`, a scalar bool on the device.

    Fused optimizers decide that on the device, by what torch's loss scaler tells them; for others the host
    waits for it. Called by all ranks with the same value.
    """
    if not _decides_on_device(optimizer):
        if not bool(is_bad):
            optimizer.step()
        return
    told: Any = optimizer
    told.found_inf, told.grad_scale = is_bad.float(), None
    try:
        optimizer.step()
    finally:
        del told.found_inf, told.grad_scale


def _decides_on_device(optimizer: torch.optim.Optimizer) -> bool:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    is_sharded = any(isinstance(parameter, DTensor) for parameter in parameters)
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False)) and not is_sharded


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate's factor as a pure function of the step; it has no state to save.

    Attributes:
        total_steps: where cosine and linear end.
        warmup_steps: steps over which the factor rises linearly from 1/warmup_steps to 1.
        step_size, gamma: for "step", the factor is multiplied by gamma every step_size steps.
        min_factor: where cosine and linear end.
    """

    name: Literal["cosine", "step", "linear", "constant"] = "constant"
    total_steps: int = 0
    warmup_steps: int = 0
    step_size: int = 0
    gamma: float = 0.1
    min_factor: float = 0.0

    def __call__(self, step: int) -> float:
        """The factor for optimizer step `step`, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.name == "constant":
            return 1.0
        if self.name == "step":
            return float(self.gamma ** (step // self.step_size)) if self.step_size else 1.0
        span = max(self.total_steps - self.warmup_steps, 1)
        progress = min((step - self.warmup_steps) / span, 1.0)
        curve = 0.5 * (1 + math.cos(math.pi * progress)) if self.name == "cosine" else 1 - progress
        return self.min_factor + (1 - self.min_factor) * curve
