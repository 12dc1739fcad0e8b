"""torch's DistributedDataParallel, set up for speed and for exact resume."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from drivetrain.engine.objective import Objective
from drivetrain.engine.settings import RunSettings
from drivetrain.engine.state import TrainState
from drivetrain.engine.step import StepScope, run_micro_batches
from drivetrain.engine.strategies.base import (
    Build,
    EvaluationForward,
    ForwardBackward,
    bare_forward,
    build_on_device,
    clip_by_norm,
    finish_state,
)
from drivetrain.spec.batch import plan_batches
from drivetrain.spec.layout import Layout


class Ddp:
    """Every rank holds the whole model; gradients are averaged bucket by bucket during the backward.

    - At world size 1 there is no wrapper: it costs 1.6 % eager and 6.4 % compiled (ResNet-50, H200), for
      nothing.
    - Buffers are not broadcast every forward; statistics of norms are averaged where they are used
      (evaluation, checkpoint), see `engine/buffers.py`.
    - DDP lays its buckets out anew after its first backward, in the order gradients came. A resumed run's
      first step would reduce in another layout than the undisturbed run's same step, and from 3 ranks on sum
      in another order. `warm_up` therefore does throw-away backwards at every start.
    """

    name = "ddp"
    needs_group = False
    owns_backward = False

    def refusals(self, settings: RunSettings, layout: Layout, device: torch.device) -> list[str]:
        if settings.sync_batchnorm and layout.world_size > 1 and device.type != "cuda":
            what = "sync_batchnorm on the CPU: torch's SyncBatchNorm needs CUDA"
            return [f"{what}; leave it off, or use a model with GroupNorm or LayerNorm"]
        return []

    def setup(self, build: Build) -> TrainState:
        self._build = build
        module, channels_last = build_on_device(build)
        return finish_state(build, module, module, channels_last=channels_last)

    def warm_up(self, state: TrainState, forward_backward: ForwardBackward | None) -> list[str]:
        """Wraps the model, as its first gradients say it must be."""
        build = self._build
        if build.world.size == 1:
            return []
        if forward_backward is None:
            finds_unused = build.settings.find_unused_parameters
            state.model.wrapped = _wrap(state.module, build, static_graph=False, finds_unused=finds_unused)
            return []
        forward_backward()
        unused = _unused_parameters(state.module)
        _drop_gradients(state.module)
        # torch asserts on static_graph with unsynchronised backwards, so not with accumulation.
        is_static = build.settings.static_graph and not unused and not _accumulates(build)
        state.model.wrapped = _wrap(state.module, build, static_graph=is_static, finds_unused=bool(unused))
        # A static graph is recorded in the first backward; its buckets settle only in the second.
        for _ in range(2 if is_static else 1):
            forward_backward()
        _drop_gradients(state.module)
        if state.ema is not None and state.ema.num_updates == 0:
            state.ema.start()  # from the weights that wrapping made the same on all ranks
        if not unused:
            return []
        names = ", ".join(unused[:3]) + (", …" if len(unused) > 3 else "")
        what = f"{len(unused)} parameters get no gradient on some rank ({names})"
        return [f"{what}: DDP searches for unused ones every step, which costs time"]

    def set_gradient_sync(self, state: TrainState, enabled: bool) -> None:
        if isinstance(state.model.wrapped, DistributedDataParallel):
            state.model.wrapped.require_backward_grad_sync = enabled

    def run_micro_batches(self, state: TrainState, scope: StepScope, objective: Objective) -> None:
        run_micro_batches(state, scope, objective)

    def clip(self, state: TrainState, max_norm: float) -> Tensor:
        return clip_by_norm(state, max_norm)

    def evaluation(self, state: TrainState) -> AbstractContextManager[EvaluationForward]:
        return nullcontext(bare_forward(state))


def _wrap(
    module: nn.Module, build: Build, *, static_graph: bool, finds_unused: bool
) -> DistributedDataParallel:
    device = build.world.device
    # torch 2.14 renamed the switch and warns of the old name; 2.11 knows only that.
    takes_new_name = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    buffers: dict[str, Any] = {"forward_sync_buffers" if takes_new_name else "broadcast_buffers": False}
    return DistributedDataParallel(
        module,
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        static_graph=static_graph,
        find_unused_parameters=finds_unused,
        **buffers,
    )


def _accumulates(build: Build) -> bool:
    settings = build.settings
    plan = plan_batches(
        global_batch=settings.global_batch,
        num_data_ranks=build.world.size,
        micro_batch=settings.micro_batch,
    )
    return plan.accumulation > 1


def _unused_parameters(module: nn.Module) -> list[str]:
    """Names of trainable parameters without a gradient on any one rank. Called by all ranks."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    device = named[0][1].device
    missing = torch.tensor([p.grad is None for _, p in named], dtype=torch.int32, device=device)
    dist.all_reduce(missing)
    return [name for (name, _), count in zip(named, missing.tolist(), strict=True) if count]


def _drop_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None
