"""Cross-entropy of tokens that never holds the logits of all of them in fp32.

At 16,384 tokens and a vocabulary of 50,304 the fp32 logits are 3.3 GB, and their gradient as much again.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

IGNORE = -100


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    vocab_size: int | None = None,
    ignore_index: int = IGNORE,
    chunk_tokens: int = 4096,
) -> Tensor:
    """Losses of tokens from the hidden states before the head, `chunk_tokens` at a time.

    The backward computes each chunk's logits again: one more product with the head, 1/3 of its cost. Products
    are in autocast's dtype, where it is on; softmax, and sums over chunks, in fp32.

    Args:
        hidden: (…, width).
        weight: (rows, width), the head's matrix, a plain tensor.
        targets: (…) int64; `ignore_index` counts nothing.
        vocab_size: rows that can be predicted; those after it only pad the matrix. None: all.

    Returns:
        (…) float32, as F.cross_entropy(hidden @ weightᵀ, targets, reduction="none"); 0 where ignored.
    """
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    losses: Tensor = _ChunkedCrossEntropy.apply(
        hidden.flatten(0, -2),
        weight,
        targets.flatten(),
        vocab_size or weight.shape[0],
        ignore_index,
        chunk_tokens,
        dtype,
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
    ) -> Tensor:
        cast_weight = weight.to(dtype)
        losses, log_sums = [], []
        for part, wanted in zip(
            torch.split(hidden, chunk_tokens), torch.split(targets, chunk_tokens), strict=True
        ):
            logits = _logits(part.to(dtype), cast_weight, vocab_size)
            log_sum = logits.logsumexp(dim=-1)
            counts = wanted != ignore_index
            picked = logits.gather(-1, torch.where(counts, wanted, 0)[:, None])[:, 0]
            losses.append(torch.where(counts, log_sum - picked, 0.0))
            log_sums.append(log_sum)
        # The uncast weight: under FSDP a copy would outlive the gathered one.
        ctx.save_for_backward(hidden, weight, targets, torch.cat(log_sums))
        ctx.facts = vocab_size, ignore_index, chunk_tokens, dtype
        return torch.cat(losses)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, log_sums = ctx.saved_tensors
        vocab_size, ignore_index, chunk_tokens, dtype = ctx.facts
        cast_weight = weight.to(dtype)
        grads_hidden = []
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        parts = (torch.split(tensor, chunk_tokens) for tensor in (hidden, targets, log_sums, grad))
        for part, wanted, log_sum, upstream in zip(*parts, strict=True):
            cast = part.to(dtype)
            # d loss / d logits = softmax − one-hot, for each token times what comes from above.
            slope = (_logits(cast, cast_weight, vocab_size) - log_sum[:, None]).exp_()
            counts = wanted != ignore_index
            index = torch.where(counts, wanted, 0)[:, None]
            slope.scatter_add_(-1, index, torch.full_like(slope[:, :1], -1.0))
            slope.mul_(torch.where(counts, upstream.float(), 0.0)[:, None])
            cast_slope = slope.to(dtype)
            grads_hidden.append((cast_slope @ cast_weight).to(hidden.dtype))
            grad_weight += cast_slope.t() @ cast
        return torch.cat(grads_hidden), grad_weight.to(weight.dtype), None, None, None, None, None


def _logits(hidden: Tensor, weight: Tensor, vocab_size: int) -> Tensor:
    """(n, rows) float32, a fresh tensor; rows past the vocabulary are never predicted."""
    logits = (hidden @ weight.t()).float()
    if vocab_size < weight.shape[0]:
        logits[:, vocab_size:] = -torch.inf
    return logits
