"""What ranks run in the test of the global norm."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from drivetrain.engine.gradient_norm import clip_sharded


def of_mixed_gradients() -> tuple[float, float, float]:
    """The norm of gradients held in every way on 2 × 2 ranks, that of the same gradients whole, and what it
    is after clipping to 0.5."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "tp"))
    torch.manual_seed(0)
    ways: list[tuple[tuple[int, ...], object, tuple[Placement, ...]]] = [
        ((8, 3), mesh, (_StridedShard(0, split_factor=2), Shard(0))),
        ((6, 4), mesh, (Shard(0), Shard(1))),
        ((5,), mesh, (Shard(0), Replicate())),  # uneven
        ((1,), mesh, (Shard(0), Replicate())),  # nothing on half of the ranks
        ((4, 4), mesh["tp"], (Shard(1),)),
        ((7,), mesh["tp"], (Replicate(),)),
    ]
    wholes, parameters = [], []
    for shape, where, places in ways:
        whole = torch.randn(shape)
        held = distribute_tensor(whole, where, places, src_data_rank=None)
        parameters.append(_parameter(held, held.clone()))
        wholes.append(whole)
    # A gradient of which each tensor rank has a summand, and one that is no DTensor.
    summand = torch.randn(3)
    summed = DTensor.from_local(summand, mesh["tp"], (Partial(),))
    parameters.append(_parameter(distribute_tensor(summand, mesh["tp"], (Replicate(),)), summed))
    wholes.append(summand * 2)
    plain = torch.randn(2, 2)
    parameters.append(_parameter(plain.clone(), plain))
    wholes.append(plain.clone())
    expected = float(torch.cat([whole.flatten() for whole in wholes]).norm())
    return float(clip_sharded(parameters, 0.5)), expected, float(clip_sharded(parameters, 0.5))


def _parameter(value: Tensor, gradient: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(value)
    parameter.grad = gradient
    return parameter
