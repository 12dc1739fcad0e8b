"""A model's blocks: the repeated modules that are sharded, compiled and recomputed one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


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


def checkpoint_activations(blocks: Sequence[nn.Module], *, every: int) -> None:
    """Has every `every`-th block recompute its activations in the backward instead of keeping them; 0: none.

    In place, so that names in checkpoints stay the bare model's.
    """
    for block in blocks[::every] if every else ():
        _recompute(block)


def _recompute(block: nn.Module) -> None:
    plain = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(plain, *args, use_reentrant=False, **kwargs)

    block.forward = forward
