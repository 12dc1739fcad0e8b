"""What tensor-parallel ranks exchange in forward and backward (Shoeybi et al. 2019, 1909.08053, 3: f and g).

All tensors are plain ones. Called by all ranks of the group, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """The ranks that share each layer's matrices, and this one's place among them."""

    group: dist.ProcessGroup
    rank: int
    size: int


def enter(x: Tensor, ranks: TensorGroup) -> Tensor:
    """`x`, the same on all ranks, into what each rank computes of its own: its gradient is their sum."""
    entered: Tensor = _Enter.apply(x, ranks.group)
    return entered


def leave(x: Tensor, ranks: TensorGroup) -> Tensor:
    """The sum of the ranks' `x`, the same on all ranks."""
    left: Tensor = _Leave.apply(x, ranks.group)
    return left


def gather_last_dim(x: Tensor, ranks: TensorGroup) -> Tensor:
    """(…, n / ranks) → (…, n): the ranks' `x` side by side. What follows must be the same on all ranks."""
    gathered: Tensor = _GatherLastDim.apply(x, ranks)
    return gathered


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _summed(grad, ctx.group), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:  # noqa: ARG004 - autograd's
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return grad, None


class _GatherLastDim(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: TensorGroup) -> Tensor:
        ctx.place = ranks.rank * x.shape[-1], x.shape[-1]
        parts = x.new_empty((ranks.size, *x.shape))
        dist.all_gather(list(parts.unbind(0)), x.contiguous(), group=ranks.group)
        return parts.movedim(0, -2).flatten(-2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        start, length = ctx.place
        return grad.narrow(-1, start, length), None


def _summed(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total
