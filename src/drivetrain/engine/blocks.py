"""A model's blocks: the repeated modules that are sharded, compiled and recomputed one by one."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from drivetrain.engine.settings import ActivationCheckpointing


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The outermost modules that have submodules of their own and whose class occurs at least twice among the
    items of the model's containers (Sequential, ModuleList, ModuleDict): a transformer's layers, a ResNet's
    residual blocks. Empty for a model without such repetition.
    """
    items = [
        child
        for container in module.modules()
        if isinstance(container, nn.Sequential | nn.ModuleList | nn.ModuleDict)
        for child in container.children()
        if not isinstance(child, nn.Sequential | nn.ModuleList | nn.ModuleDict)
        and any(True for _ in child.children())
        and any(True for _ in child.parameters())
    ]
    counts = Counter(type(item) for item in items)
    repeated = [item for item in items if counts[type(item)] >= 2]
    inner = {id(part) for item in repeated for part in item.modules() if part is not item}
    return [item for item in repeated if id(item) not in inner]


def checkpoint_activations(blocks: Sequence[nn.Module], *, every: ActivationCheckpointing) -> None:
    """Has every `every`-th block recompute its activations in the backward instead of keeping them; 0: none.
    "selective": every block, but results of products, convolutions, attention and reductions over ranks are
    kept, and only what is cheap between them is computed again.

    In place, so that names in checkpoints stay the bare model's.
    """
    if every == "selective":
        for block in blocks:
            _recompute(block, context_fn=_keeping_what_is_costly)
        return
    for block in blocks[::every] if every else ():
        _recompute(block)


def _recompute(block: nn.Module, **options: Any) -> None:
    plain = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(plain, *args, use_reentrant=False, **options, **kwargs)

    block.forward = forward


# By name, since not every version and build of torch has them all.
_COSTLY = frozenset(
    {
        *("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm", "aten::_grouped_mm"),
        "aten::convolution",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_fused_attention_overrideable",
        "_c10d_functional::all_reduce",
        "_c10d_functional::reduce_scatter_tensor",
    }
)


def _keep_or_recompute(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:  # noqa: ARG001
    is_costly = isinstance(op, torch._ops.OpOverload) and op._schema.name in _COSTLY
    return CheckpointPolicy.MUST_SAVE if is_costly else CheckpointPolicy.PREFER_RECOMPUTE


# torch.compile reads the policy out of a partial of exactly this function.
_keeping_what_is_costly = functools.partial(create_selective_checkpoint_contexts, _keep_or_recompute)
