"""Cross-entropy of tokens that never holds the logits of all of them in fp32.

At 16,384 tokens and a vocabulary of 50,304 the fp32 logits are 3.3 GB, and their gradient as much again.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from drivetrain.engine.tensor_collectives import TensorGroup, enter

IGNORE = -100


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    vocab_size: int | None = None,
    ignore_index: int = IGNORE,
    chunk_tokens: int = 4096,
    ranks: TensorGroup | None = None,
) -> Tensor:
    """Losses of tokens from the hidden states before the head, `chunk_tokens` at a time.

    The backward computes each chunk's logits again: one more product with the head, 1/3 of its cost. Products
    are in autocast's dtype, where it is on; softmax, and sums over chunks, in fp32.

    Args:
        hidden: (…, width).
        weight: (rows, width), the head's matrix, a plain tensor.
        targets: (…) int64; `ignore_index` counts nothing.
        vocab_size: rows that can be predicted; those after it only pad the matrix. None: all.
        ranks: who share the matrix by its rows; `weight` is then this rank's part, and no logits leave it:
            the ranks exchange three numbers a token, and the gradient of `hidden`. Called by all of them.

    Returns:
        (…) float32, as F.cross_entropy(hidden @ weightᵀ, targets, reduction="none"); 0 where ignored.
    """
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    num_rows = weight.shape[0] * (ranks.size if ranks is not None else 1)
    losses: Tensor = _ChunkedCrossEntropy.apply(
        (hidden if ranks is None else enter(hidden, ranks)).flatten(0, -2),
        weight,
        targets.flatten(),
        vocab_size or num_rows,
        ignore_index,
        chunk_tokens,
        dtype,
        ranks,
    )
    return losses.view(targets.shape)


def cross_entropy_of_logits(
    logits: Tensor, targets: Tensor, *, ignore_index: int = IGNORE, chunk_tokens: int = 4096
) -> Tensor:
    """The same from logits (…, classes), for a head whose matrix is not at hand (tensor parallel, the last
    stage of a pipeline): the logits are there in their own dtype, and in fp32 a chunk at a time."""
    flat, flat_targets = logits.flatten(0, -2), targets.flatten()
    losses = [
        checkpoint(_plain, part, wanted, ignore_index, use_reentrant=False)
        for part, wanted in zip(
            torch.split(flat, chunk_tokens), torch.split(flat_targets, chunk_tokens), strict=True
        )
    ]
    return torch.cat(losses).view(targets.shape)


def _plain(logits: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
    return F.cross_entropy(logits.float(), targets, reduction="none", ignore_index=ignore_index)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # (N, width)
        weight: Tensor,
        targets: Tensor,  # (N,)
        vocab_size: int,
        ignore_index: int,
        chunk_tokens: int,
        dtype: torch.dtype,
        ranks: TensorGroup | None,
    ) -> Tensor:
        cast_weight = weight.to(dtype)
        rows = _own_rows(weight, ranks)
        picked, log_sums = [], []
        for part, wanted in zip(
            torch.split(hidden, chunk_tokens), torch.split(targets, chunk_tokens), strict=True
        ):
            logits = _logits(part.to(dtype), cast_weight, vocab_size - rows.start)
            log_sums.append(logits.logsumexp(dim=-1))
            is_here, index = _places(wanted, rows, ignore_index)
            picked.append(torch.where(is_here, logits.gather(-1, index)[:, 0], 0.0))
        log_sum, target_logit = torch.cat(log_sums), torch.cat(picked)
        if ranks is not None:
            log_sum, target_logit = _over_ranks(log_sum, target_logit, ranks)
        # The uncast weight: under FSDP a copy would outlive the gathered one.
        ctx.save_for_backward(hidden, weight, targets, log_sum)
        ctx.facts = vocab_size, ignore_index, chunk_tokens, dtype, rows
        return torch.where(targets != ignore_index, log_sum - target_logit, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, log_sums = ctx.saved_tensors
        vocab_size, ignore_index, chunk_tokens, dtype, rows = ctx.facts
        cast_weight = weight.to(dtype)
        grads_hidden = []
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        parts = (torch.split(tensor, chunk_tokens) for tensor in (hidden, targets, log_sums, grad))
        for part, wanted, log_sum, upstream in zip(*parts, strict=True):
            cast = part.to(dtype)
            # d loss / d logits = softmax − one-hot, for each token times what comes from above.
            slope = (_logits(cast, cast_weight, vocab_size - rows.start) - log_sum[:, None]).exp_()
            is_here, index = _places(wanted, rows, ignore_index)
            slope.scatter_add_(-1, index, -is_here[:, None].to(slope.dtype))
            slope.mul_(torch.where(wanted != ignore_index, upstream.float(), 0.0)[:, None])
            cast_slope = slope.to(dtype)
            grads_hidden.append((cast_slope @ cast_weight).to(hidden.dtype))
            grad_weight += cast_slope.t() @ cast
        return torch.cat(grads_hidden), grad_weight.to(weight.dtype), *(None,) * 6


def _own_rows(weight: Tensor, ranks: TensorGroup | None) -> range:
    """Which rows of the whole matrix `weight` holds."""
    start = 0 if ranks is None else ranks.rank * weight.shape[0]
    return range(start, start + weight.shape[0])


def _places(targets: Tensor, rows: range, ignore_index: int) -> tuple[Tensor, Tensor]:
    """(n,) whether each target's row is among `rows`, and (n, 1) where; 0 if not."""
    is_here = (targets != ignore_index) & (targets >= rows.start) & (targets < rows.stop)
    return is_here, torch.where(is_here, targets - rows.start, 0)[:, None]


def _over_ranks(log_sum: Tensor, target_logit: Tensor, ranks: TensorGroup) -> tuple[Tensor, Tensor]:
    """log Σ exp over all ranks' rows, and the target's logit, which one of the ranks has."""
    largest = log_sum.clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=ranks.group)
    sums = torch.stack(((log_sum - largest).exp(), target_logit))
    dist.all_reduce(sums, group=ranks.group)
    return largest + sums[0].log(), sums[1]


def _logits(hidden: Tensor, weight: Tensor, num_predicted: int) -> Tensor:
    """(n, rows) float32, a fresh tensor; rows from `num_predicted` on are never predicted."""
    logits = (hidden @ weight.t()).float()
    if num_predicted < weight.shape[0]:
        logits[:, max(num_predicted, 0) :] = -torch.inf
    return logits
