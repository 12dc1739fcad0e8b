"""Buffers (running statistics of norms) differ between data ranks; here they are averaged where one set is
needed: for evaluation and in checkpoints. Training itself never waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drivetrain.engine.world import World


def local_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Persistent floating-point buffers by name: those that can drift apart."""
    saved = module.state_dict(keep_vars=True)
    return {name: b for name, b in module.named_buffers() if name in saved and b.is_floating_point()}


@contextmanager
def averaged_buffers(
    module: nn.Module, world: World, replicas: dist.ProcessGroup | None = None
) -> Iterator[None]:
    """Within it the buffers are the mean over `replicas` (None: all ranks), afterwards this rank's own.
    Called by all ranks."""
    buffers = local_buffers(module)
    if world.size == 1 or not buffers:
        yield
        return
    kept = {name: buffer.detach().clone() for name, buffer in buffers.items()}
    with torch.no_grad():
        flat = torch.cat([buffer.detach().float().flatten() for buffer in buffers.values()])
        dist.all_reduce(flat, group=replicas)
        flat /= dist.get_world_size(replicas)
        sizes = [buffer.numel() for buffer in buffers.values()]
        for buffer, mean in zip(buffers.values(), torch.split(flat, sizes), strict=True):
            buffer.copy_(mean.view_as(buffer))
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in buffers.items():
                buffer.copy_(kept[name])
