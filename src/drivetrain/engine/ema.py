"""An exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Ema:
    """Averages the trainable parameters of `module` after each step: `ema += (1 − d) (weight − ema)`.

    The decay d rises with the number of updates n as min(decay, (1 + n) / (10 + n)), so that a short run's
    average is not held at its random start (the rule of TensorFlow's ExponentialMovingAverage).
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.num_updates = 0
        self._live = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.weights: dict[str, Tensor] = {name: p.detach().clone() for name, p in self._live.items()}

    @torch.no_grad()
    def start(self) -> None:
        """Sets the average to the weights."""
        torch._foreach_copy_(list(self.weights.values()), list(self._live.values()))

    @torch.no_grad()
    def update(self) -> None:
        self.num_updates += 1
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        torch._foreach_lerp_(list(self.weights.values()), list(self._live.values()), 1 - decay)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Within it the module computes with the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, parameter in self._live.items():
            kept = parameter.detach().clone()
            parameter.copy_(self.weights[name])
            self.weights[name].copy_(kept)
