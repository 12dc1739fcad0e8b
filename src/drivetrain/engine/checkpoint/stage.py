"""A copy of the state in host memory, from which a checkpoint is written while training goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.staging import BlockingAsyncStager

from drivetrain.engine.buffers import averaged_buffers
from drivetrain.engine.checkpoint.content import own_buffers_of, random_state, scalars_of, tensors_of
from drivetrain.engine.state import TrainState, local_part
from drivetrain.engine.world import World
from drivetrain.spec.errors import NonFiniteLossError


@dataclass(frozen=True, kw_only=True)
class Staged:
    """What this rank writes of one checkpoint.

    Attributes:
        tensors: this rank's parts, in host memory; overwritten when the same stager stages again.
        document: what goes into state.json.
        random_state: this rank's generators, as JSON.
    """

    step: int
    tensors: dict[str, Tensor]
    document: dict[str, Any]
    random_state: str


class Stager:
    """Stages one state after the other in the same memory, the size of this rank's part of the state; on GPUs
    it is page-locked, which takes its time at the first use."""

    def __init__(self, device: torch.device) -> None:
        self._copier = BlockingAsyncStager(cache_staged_state_dict=device.type == "cuda")

    def stage(self, state: TrainState, world: World, facts: dict[str, Any]) -> Staged:
        """Copies what a checkpoint of `state` holds. Called by all ranks, at the same step.

        Args:
            facts: what else a resume needs to know or check, as JSON values (data fingerprint, batch, …).

        Raises:
            NonFiniteLossError: on every rank, where the state holds NaN or infinity.
        """
        _check_finite(state, world)
        # rng holds the state before this save, whichever random numbers saving itself may draw.
        saved_random = json.dumps(random_state(world.device))
        own_buffers = own_buffers_of(state, world)
        with averaged_buffers(state.module, world, state.replicas):
            tensors: dict[str, Tensor] = self._copier.stage(tensors_of(state) | own_buffers)
        scalars = scalars_of(state)
        scalars["optimizer_options"] |= _options_elsewhere(state, world)
        return Staged(
            step=state.step,
            tensors=tensors,
            document={"world_size": world.size, **facts, **scalars},
            random_state=saved_random,
        )


def _options_elsewhere(state: TrainState, world: World) -> dict[str, Any]:
    """The optimizer's options of all parameters, where each rank has only some. Called by all ranks."""
    if state.replicas is None:
        return {}
    parts = world.gather(scalars_of(state)["optimizer_options"])
    return {name: value for part in parts for name, value in part.items()}


def _check_finite(state: TrainState, world: World) -> None:
    """A state that holds NaN must not take the place of a good one. (Buffers may: masks are made of −inf.)"""
    bad = next(
        (
            name
            for name, parameter in state.module.named_parameters()
            if not bool(torch.isfinite(local_part(parameter.detach())).all())
        ),
        None,
    )
    found = world.gather(bad)
    ranks = tuple(rank for rank, name in enumerate(found) if name is not None)
    if ranks:
        raise NonFiniteLossError(
            step=state.step,
            ranks=ranks,
            what=f"the weights ({found[ranks[0]]})",
            value=float("nan"),
            do="nothing was saved and earlier checkpoints are untouched; lower the learning rate, clip the"
            " gradient (optim.clip_norm), or use --precision bf16 or fp32",
        )
