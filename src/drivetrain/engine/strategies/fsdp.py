"""torch's fully_shard (FSDP2): each rank keeps a part of weights, gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
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
from drivetrain.engine.mesh import build_mesh
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
from drivetrain.spec.layout import Layout


class Fsdp:
    """Weights are gathered block by block when they are needed, and gradients reduced to the rank that keeps
    them. With `mesh: {dp_replicate: n}` the shards are held n times over (hybrid sharding), so that gathering
    stays within a group of well-linked ranks.

    - Blocks are the repeated modules of the model (`engine/blocks.py`); each is gathered, computed, compiled
      and, if asked, checkpointed on its own.
    - Only rank 0 ever holds the whole model, on the CPU: the others build it on the meta device and receive
      their part. The weights are those that any other strategy starts from.
    - In bf16 and fp16 the gathered copies are of that type, which halves the traffic; gradients are reduced
      in fp32, and the shards and the optimizer stay fp32. Models with BatchNorm are gathered in fp32.
    """

    name = "fsdp"
    needs_group = True
    owns_backward = False

    def refusals(self, settings: RunSettings, layout: Layout, device: torch.device) -> list[str]:
        reasons = []
        if settings.precision == "fp16" and device.type == "cpu":
            reasons.append("fp16 on the CPU: torch's loss scaler takes no sharded gradients there; use bf16")
        if settings.fsdp_cpu_offload and device.type == "cpu":
            reasons.append("fsdp.cpu_offload: the weights are on the CPU already")
        return reasons

    def setup(self, build: Build) -> TrainState:
        settings, device = build.settings, build.world.device
        whole, module = _whole_and_meta(build)
        blocks = blocks_of(module)
        checkpoint_activations(blocks, every=settings.activation_checkpointing)
        if settings.compile:
            for block in blocks or [module]:
                block.compile()
        mesh = build_mesh(build.layout, device)
        # torch's batch norm wants its weights in the type of its running statistics, which stay fp32.
        has_batchnorm = any(isinstance(part, _BatchNorm) for part in module.modules())
        gathered_type = None if has_batchnorm else build.precision.autocast_dtype
        options: dict[str, Any] = {
            "mesh": mesh,
            "reshard_after_forward": settings.fsdp_reshard_after_forward,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=gathered_type,
                reduce_dtype=torch.float32,
                cast_forward_inputs=False,  # autocast does that
            ),
            "offload_policy": CPUOffloadPolicy() if settings.fsdp_cpu_offload else OffloadPolicy(),
        }
        for block in blocks:
            fully_shard(block, **options)
        fully_shard(module, **options)
        _materialise(module, whole, torch.device("cpu") if settings.fsdp_cpu_offload else device)
        return finish_state(build, module, module, channels_last=False)

    def warm_up(self, state: TrainState, forward_backward: ForwardBackward | None) -> list[str]:
        return []

    def set_gradient_sync(self, state: TrainState, enabled: bool) -> None:
        assert isinstance(state.module, FSDPModule)
        state.module.set_requires_gradient_sync(enabled)

    def run_micro_batches(self, state: TrainState, scope: StepScope, objective: Objective) -> None:
        run_micro_batches(state, scope, objective)

    def clip(self, state: TrainState, max_norm: float) -> Tensor:
        return clip_sharded(state.module.parameters(), max_norm)

    def evaluation(self, state: TrainState) -> AbstractContextManager[EvaluationForward]:
        return _resharded_afterwards(state)


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


def _whole_and_meta(build: Build) -> tuple[nn.Module | None, nn.Module]:
    """On rank 0 the whole model on the CPU; on every rank its skeleton on the meta device."""
    whole = built_model(build) if build.world.rank == 0 else None
    with torch.device("meta"):
        return whole, built_model(build)


def _materialise(module: nn.Module, whole: nn.Module | None, device: torch.device) -> None:
    """Gives the sharded skeleton its weights and buffers from rank 0's `whole`. Called by all ranks."""
    module.to_empty(device=device)
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
