"""A copy of the state in host memory, from which a checkpoint is written while training goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed._state_dict_utils import _create_cpu_state_dict
from torch.distributed.checkpoint.staging import BlockingAsyncStager

from drivetrain.engine.background import Background
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
    it is page-locked, at about a second for each GB (H200 host), which `prepare` does beforehand."""

    def __init__(self, device: torch.device) -> None:
        self._is_kept = device.type == "cuda"
        self._copier = BlockingAsyncStager(cache_staged_state_dict=self._is_kept)
        self._preparing: Background[None] | None = None

    def prepare(self, state: TrainState, world: World) -> None:
        """Begins to get the memory that `stage` needs, while training goes on. Called by all ranks, after a
        first step, since an optimizer has no state before."""
        if not self._is_kept or self._preparing is not None:
            return
        tensors = tensors_of(state) | own_buffers_of(state, world)
        self._preparing = Background(lambda: self._get_memory(tensors), name="staging")

    def _get_memory(self, tensors: dict[str, Tensor]) -> None:
        kept: dict[str, Any] = {}
        for name, tensor in tensors.items():
            # One after the other: the driver's lock is not held for long, and launches go on in between.
            kept |= _create_cpu_state_dict({name: tensor}, pin_memory=True)
        self._copier.state_dict_cache = kept

    def stage(self, state: TrainState, world: World, facts: dict[str, Any]) -> Staged:
        """Copies what a checkpoint of `state` holds. Called by all ranks, at the same step.

        Args:
            facts: what else a resume needs to know or check, as JSON values (data fingerprint, batch, …).

        Raises:
            NonFiniteLossError: on every rank, where the state holds NaN or infinity.
        """
        if self._preparing is not None:
            self._preparing.result()
        _check_finite(state, world)
        # rng holds the state before this save, whichever random numbers saving itself may draw.
        saved_random = json.dumps(random_state(world.device))
        own_buffers = own_buffers_of(state, world)
        with averaged_buffers(state.module, world, state.replicas):
            live = tensors_of(state) | own_buffers
            kept = self._copier.state_dict_cache
            if kept is not None and kept.keys() != live.keys():
                self._copier.state_dict_cache = None  # the optimizer has more state than when it was prepared
            tensors: dict[str, Tensor] = self._copier.stage(live)
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
