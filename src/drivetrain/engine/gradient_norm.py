"""The global norm of gradients of which each rank holds a part, and clipping to it.

torch's own clipping refuses gradients on different meshes (FSDP's and tensor parallel's in one model), and
knows nothing of other stages of a pipeline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from drivetrain.engine.state import local_part

_EPS = 1e-6  # torch.nn.utils.clip_grad_norm_'s


@torch.no_grad()
def clip_sharded(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    *,
    stages: dist.ProcessGroup | None = None,
    counted_elsewhere: Iterable[nn.Parameter] = (),
) -> Tensor:
    """Scales the gradients down to the global 2-norm `max_norm`; returns the norm before, a scalar.

    Called by all ranks. Each element counts once, wherever it lies and however often it is held; sums are in
    fp32.

    Args:
        stages: the ranks that hold the other stages of a pipeline.
        counted_elsewhere: parameters that another stage holds too, and counts.
    """
    trained = [p for p in parameters if p.grad is not None]
    for parameter in trained:
        _settle(parameter)
    elsewhere = {id(parameter) for parameter in counted_elsewhere}
    by_groups: dict[tuple[dist.ProcessGroup, ...], list[Tensor]] = defaultdict(list)
    for parameter in trained:
        if id(parameter) not in elsewhere:
            by_groups[_holders(parameter.grad)].append(_local(parameter))
    device = _local(trained[0]).device if trained else torch.device("cpu")
    total = torch.zeros((), device=device)
    for groups, gradients in by_groups.items():
        norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
        square = torch.stack([norm.to(device) for norm in norms]).square().sum()
        for group in groups:
            dist.all_reduce(square, group=group)
        total += square
    if stages is not None:
        dist.all_reduce(total, group=stages)
    norm = total.sqrt()
    factor = (max_norm / (norm + _EPS)).clamp(max=1.0)
    if trained:
        torch._foreach_mul_([_local(parameter) for parameter in trained], factor)
    return norm


def _settle(parameter: nn.Parameter) -> None:
    """A gradient of which each rank has a summand is summed first."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and any(isinstance(p, Partial) for p in gradient.placements):
        assert isinstance(parameter, DTensor)
        parameter.grad = gradient.redistribute(placements=parameter.placements)


def _local(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return local_part(parameter.grad)


def _holders(gradient: Tensor | None) -> tuple[dist.ProcessGroup, ...]:
    """The groups over whose ranks the elements of `gradient` are spread."""
    if not isinstance(gradient, DTensor):
        return ()
    mesh = gradient.device_mesh
    # Whatever is not whole on each rank: FSDP's _StridedShard over tensor parallel is a Shard, and says so,
    # in some versions of torch alone; sums (Partial) are settled before.
    spread = [dim for dim, place in enumerate(gradient.placements) if not place.is_replicate()]
    return tuple(mesh.get_group(dim) for dim in spread)
