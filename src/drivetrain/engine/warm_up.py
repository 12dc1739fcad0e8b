"""The throw-away computation at every start, that leaves no trace in the state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.compiler import set_stance
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from drivetrain.data.batch import MicroBatch
from drivetrain.data.draw import restored_globals
from drivetrain.engine.objective import Objective
from drivetrain.engine.state import TrainState
from drivetrain.engine.step import forward_loss
from drivetrain.engine.strategies.base import Strategy
from drivetrain.engine.world import World
from drivetrain.spec.errors import InputError


def warm_up(
    strategy: Strategy,
    state: TrainState,
    world: World,
    objective: Objective | None,
    micro: MicroBatch,
    *,
    is_counted: bool,
) -> list[str]:
    """Lets the strategy settle on one micro-batch; weights, buffers and generators are as they were after it.

    Called by all ranks before the first step of every start. `objective` is None where the inner loop is the
    user's own; `is_counted` as in `Layout`. Returns notes to print.
    """
    buffers = {name: buffer.detach().clone() for name, buffer in state.module.named_buffers()}
    devices = [world.device] if world.device.type == "cuda" else []
    with restored_globals(), torch.random.fork_rng(devices=devices):
        if objective is None:
            notes = strategy.warm_up(state, None)
        else:
            _refuse_a_mean(strategy, state, world, objective, micro, is_counted=is_counted)
            notes = strategy.warm_up(
                state, lambda: torch.autograd.backward(forward_loss(state, objective, micro))
            )
    with torch.no_grad():
        for name, buffer in state.module.named_buffers():
            kept = buffers.get(name)  # None: made in the first forward, a cache of the model's own
            if kept is not None and kept.shape == buffer.shape:
                buffer.copy_(kept)
    return notes


def _refuse_a_mean(
    strategy: Strategy,
    state: TrainState,
    world: World,
    objective: Objective,
    micro: MicroBatch,
    *,
    is_counted: bool,
) -> None:
    """A scalar loss must be a SUM over samples: then those of two halves add up to that of the whole. Those
    of a mean average to it instead, and its gradients would be too small by the size of the batch, unsaid.

    Called by all ranks, which all raise what one has found.

    Raises:
        InputError: the halves average to the whole.
    """
    if objective.weight is not None:
        return
    half = max(micro.size // 2, 1)
    first = micro.map_tensors(lambda t: t[:half])
    second = micro.map_tensors(lambda t: t[half : 2 * half]) if micro.size >= 2 else first
    parts = (micro.map_tensors(lambda t: t[: 2 * half]), first, second)
    # Eagerly: a compiled model would take the sizes of the halves for a sign that sizes vary.
    with torch.no_grad(), set_stance("force_eager"), _without_noise(state.module):
        # The same forward passes on every rank, whatever its share: in some strategies they communicate.
        with strategy.evaluation(state) as forward:
            outputs = [forward(objective.inputs(part)) for part in parts]
        losses = (
            [objective.loss(o, part) for o, part in zip(outputs, parts, strict=True)] if is_counted else []
        )
    found = _mean_found(losses) if micro.size >= 2 and micro.num_valid == micro.size else None
    found = next((text for text in world.gather(found) if text is not None), None)
    if found is not None:
        do = "return one loss a sample, shape (B,), or their sum (reduction='none' or 'sum')"
        raise InputError("the loss", found, do)


def _mean_found(losses: list[Tensor]) -> str | None:
    """What makes the losses of a whole and its two halves look like means; None if nothing does."""
    if not losses or losses[0].ndim != 0:
        return None
    whole, one, other = (float(loss) for loss in losses)
    is_mean = abs(whole - (one + other) / 2) <= 1e-3 * abs(whole)
    if not is_mean or abs(whole - (one + other)) <= 0.1 * abs(whole):
        return None
    return f"it looks like a mean: {whole:.4g}, and {one:.4g} and {other:.4g} over halves of the samples"


@contextmanager
def _without_noise(module: nn.Module) -> Iterator[None]:
    """Within it dropout and batch statistics are off, which would make halves differ from the whole. The rest
    stays in training mode: a model's output may be another thing there than in evaluation."""
    noisy = [m for m in module.modules() if isinstance(m, _BatchNorm | _DropoutNd) and m.training]
    for part in noisy:
        part.training = False
    try:
        yield
    finally:
        for part in noisy:
            part.training = True
