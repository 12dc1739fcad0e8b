"""What is minimised: losses are sums with weights, so that unequal shares give the right gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drivetrain.data.batch import MicroBatch
from drivetrain.spec.errors import InputError


def _first(micro: MicroBatch) -> Any:
    return micro.x


@dataclass(frozen=True, kw_only=True)
class Objective:
    """How a micro-batch becomes a loss.

    Attributes:
        loss: from the model's output and the micro-batch, either per-sample losses of shape (B,), which are
            weighted by `MicroBatch.weight` and summed here, or a scalar that is already that weighted SUM.
        inputs: what the model is called with (a tuple is unpacked, a dict passed by name).
        weight: the weight of the micro-batch's sum, known before the forward; None counts valid samples.
            The gradient of a step is the gradient of (sum of losses) / (sum of weights) over all ranks.
    """

    loss: Callable[[Any, MicroBatch], Tensor]
    inputs: Callable[[MicroBatch], Any] = _first
    weight: Callable[[MicroBatch], float] | None = None

    def weight_of(self, micro: MicroBatch) -> float:
        return micro.num_valid if self.weight is None else float(self.weight(micro))

    def loss_sum(self, output: Any, micro: MicroBatch) -> Tensor:
        """The weighted sum of losses, a scalar.

        Raises:
            InputError: the loss is neither a scalar nor one number a sample.
        """
        loss = self.loss(output, micro)
        if loss.ndim == 0:
            # A micro-batch of padding alone has no sum of its own, whatever the loss made of its zeros.
            return loss if micro.num_valid else torch.where(loss > torch.inf, loss, 0.0)
        if loss.shape == micro.weight.shape:
            # where, not multiplication: a placeholder's loss may be infinite, and 0 × inf is NaN.
            return torch.where(micro.weight > 0, loss * micro.weight, 0.0).sum()
        raise InputError(
            "the task's loss",
            f"it returned shape {tuple(loss.shape)} for a micro-batch of {micro.size}",
            "return one loss a sample, shape (B,), or their sum, a scalar",
        )


def call_model(model: Callable[..., Any], inputs: Any) -> Any:
    """Calls `model` with `inputs`: a tuple unpacked, a dict by name, anything else as one argument."""
    if isinstance(inputs, tuple):
        return model(*inputs)
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(inputs)


def cross_entropy(output: Tensor, target: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Per-sample cross-entropy in fp32, shape (B,), from logits (B, C) and class indices (B,)."""
    return F.cross_entropy(output.float(), target, reduction="none", label_smoothing=label_smoothing)
