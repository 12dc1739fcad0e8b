"""Each rank keeps a part of the model: by torch's fully_shard (FSDP2), by tensor parallelism, or by both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.nn.modules.batchnorm import _BatchNorm

from drivetrain.engine.blocks import blocks_of, checkpoint_activations
from drivetrain.engine.gradient_norm import clip_sharded
from drivetrain.engine.mesh import DATA_AXES, build_mesh, has_axis
from drivetrain.engine.objective import Objective
from drivetrain.engine.settings import RunSettings
from drivetrain.engine.state import TrainState
from drivetrain.engine.step import StepScope, run_micro_batches
from drivetrain.engine.strategies.base import (
    Build,
    EvaluationForward,
    ForwardBackward,
    bare_forward,
    built_model,
    finish_state,
)
from drivetrain.engine.tensor_parallel import split_model
from drivetrain.spec.layout import Layout


class Fsdp:
    """Sharding over data ranks, splitting over tensor ranks, or both: strategies `fsdp` and `tensor`.

    Over data ranks weights are gathered block by block when they are needed, and gradients reduced to the
    rank that keeps them. With `mesh: {dp_replicate: n}` the shards are held n times over (hybrid sharding),
    so that gathering stays within a group of well-linked ranks; with `dp_shard: 1` that is replication.

    - Blocks are the repeated modules of the model (`engine/blocks.py`); each is gathered, computed, compiled
      and, if asked, checkpointed on its own.
    - Only rank 0 ever holds the whole model, on the CPU: the others build it on the meta device and receive
      their part. The weights are those that any other strategy starts from.
    - In bf16 and fp16 the gathered copies are of that type, which halves the traffic; gradients are reduced
      in fp32, and the shards and the optimizer stay fp32. Models with BatchNorm are gathered in fp32.
    - Tensor ranks (`mesh: {tp: n}`) first share each matrix as the model's plan says
      (`engine/tensor_plan.py`); what fully_shard then gathers is a rank's part. Without data ranks nothing is
      gathered.
    """

    needs_group = True
    owns_backward = False

    def __init__(self, name: str = "fsdp") -> None:
        self.name = name
        self._notes: tuple[str, ...] = ()

    def refusals(self, settings: RunSettings, layout: Layout, device: torch.device) -> list[str]:
        reasons = []
        if settings.precision == "fp16" and device.type == "cpu":
            reasons.append("fp16 on the CPU: torch's loss scaler takes no sharded gradients there; use bf16")
        if settings.fsdp_cpu_offload and device.type == "cpu":
            reasons.append("fsdp.cpu_offload: the weights are on the CPU already")
        elif settings.fsdp_cpu_offload and not self._gathers(layout):
            reasons.append("fsdp.cpu_offload: it needs strategy fsdp, or data ranks")
        return reasons

    def setup(self, build: Build) -> TrainState:
        settings, device = build.settings, build.world.device
        mesh = build_mesh(build.layout, device)
        with torch.device("meta"):
            module = built_model(build)
        if has_axis(mesh, "tp"):
            self._notes = split_model(module, mesh["tp"], world_size=build.world.size)
        blocks = blocks_of(module)
        checkpoint_activations(blocks, every=settings.activation_checkpointing)
        if settings.compile:
            for block in blocks or [module]:
                block.compile()
        if self._gathers(build.layout):
            data_axes = tuple(axis for axis in DATA_AXES if has_axis(mesh, axis))
            _shard(module, blocks, mesh[data_axes], build)
        whole = built_model(build) if build.world.rank == 0 else None
        _materialise(module, whole, torch.device("cpu") if settings.fsdp_cpu_offload else device)
        return finish_state(build, module, module, channels_last=False)

    def _gathers(self, layout: Layout) -> bool:
        return self.name == "fsdp" or layout.num_data_ranks > 1

    def warm_up(self, state: TrainState, forward_backward: ForwardBackward | None) -> list[str]:
        return list(self._notes)

    def set_gradient_sync(self, state: TrainState, enabled: bool) -> None:
        if isinstance(state.module, FSDPModule):
            state.module.set_requires_gradient_sync(enabled)

    def run_micro_batches(self, state: TrainState, scope: StepScope, objective: Objective) -> None:
        run_micro_batches(state, scope, objective)

    def clip(self, state: TrainState, max_norm: float) -> Tensor:
        return clip_sharded(state.module.parameters(), max_norm)

    def evaluation(self, state: TrainState) -> AbstractContextManager[EvaluationForward]:
        return _resharded_afterwards(state)


def tensor() -> Fsdp:
    return Fsdp("tensor")


@contextmanager
def _resharded_afterwards(state: TrainState) -> Iterator[EvaluationForward]:
    """The root keeps its gathered weights after a forward, for the backward that here never comes. What is
    then changed in the shards (the moving average swapped back) would not be seen by the next forward."""
    try:
        yield bare_forward(state)
    finally:
        for part in state.module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()


def _shard(module: nn.Module, blocks: list[nn.Module], mesh: DeviceMesh, build: Build) -> None:
    settings = build.settings
    # torch's batch norm wants its weights in the type of its running statistics, which stay fp32.
    has_batchnorm = any(isinstance(part, _BatchNorm) for part in module.modules())
    options: dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": settings.fsdp_reshard_after_forward,
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=None if has_batchnorm else build.precision.autocast_dtype,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,  # autocast does that
        ),
        "offload_policy": CPUOffloadPolicy() if settings.fsdp_cpu_offload else OffloadPolicy(),
    }
    for block in blocks:
        fully_shard(block, **options)
    fully_shard(module, **options)


def _materialise(module: nn.Module, whole: nn.Module | None, device: torch.device) -> None:
    """Gives the placed skeleton its weights and buffers from rank 0's `whole`. Called by all ranks."""
    shared = _shared_parameters(module)
    module.to_empty(device=device)
    for (owner, name), *others in shared:
        for other, other_name in others:
            other._parameters[other_name] = owner._parameters[name]
    set_model_state_dict(
        module,
        whole.state_dict() if whole is not None else {},
        options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
    )
    # Buffers that are not saved (position tables) are in no state dict, and empty now.
    saved = module.state_dict().keys()
    sources = dict(whole.named_buffers()) if whole is not None else {}
    for name, buffer in module.named_buffers():
        if name not in saved:
            if name in sources:
                buffer.copy_(sources[name])
            dist.broadcast(buffer, src=0)


def _shared_parameters(module: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Who owns each parameter that several modules own (tied embeddings), and by which name. A move from the
    meta device makes one of each."""
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append((part, name))
    return [places for places in owners.values() if len(places) > 1]
