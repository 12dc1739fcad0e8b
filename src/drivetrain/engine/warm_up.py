"""The throw-away computation at every start, that leaves no trace in the state."""

from __future__ import annotations

import torch

from drivetrain.data.batch import MicroBatch
from drivetrain.data.draw import restored_globals
from drivetrain.engine.objective import Objective, call_model
from drivetrain.engine.state import TrainState
from drivetrain.engine.step import forward_loss
from drivetrain.engine.strategies.base import Strategy
from drivetrain.engine.world import World
from drivetrain.spec.errors import InputError


def warm_up(
    strategy: Strategy, state: TrainState, world: World, objective: Objective | None, micro: MicroBatch
) -> list[str]:
    """Lets the strategy settle on one micro-batch; weights, buffers and generators are as they were after it.

    Called by all ranks before the first step of every start. `objective` is None where the inner loop is the
    user's own. Returns notes to print.
    """
    buffers = {name: buffer.detach().clone() for name, buffer in state.module.named_buffers()}
    devices = [world.device] if world.device.type == "cuda" else []
    with restored_globals(), torch.random.fork_rng(devices=devices):
        if objective is None:
            notes = strategy.warm_up(state, None)
        else:
            _refuse_a_mean(state, objective, micro)
            notes = strategy.warm_up(
                state, lambda: torch.autograd.backward(forward_loss(state, objective, micro))
            )
    with torch.no_grad():
        for name, buffer in state.module.named_buffers():
            buffer.copy_(buffers[name])
    return notes


def _refuse_a_mean(state: TrainState, objective: Objective, micro: MicroBatch) -> None:
    """A scalar loss must be a SUM over samples: then those of two halves add up to that of the whole. Those
    of a mean average to it instead, and its gradients would be too small by the size of the batch, unsaid.

    Raises:
        InputError: the halves average to the whole.
    """
    if objective.weight is not None:
        return
    # The same three forward passes on every rank, whatever its share: in some strategies they communicate.
    half = max(micro.size // 2, 1)
    parts = (micro.map_tensors(lambda t: t[: 2 * half]), *_halves(micro, half))
    was_training = state.module.training
    state.module.eval()
    with torch.no_grad():
        model = state.model.around(state.module)
        losses = [objective.loss(call_model(model, objective.inputs(part)), part) for part in parts]
    state.module.train(was_training)
    if losses[0].ndim != 0 or micro.size < 2 or micro.num_valid != micro.size:
        return
    whole, first, second = (float(loss) for loss in losses)
    is_mean = abs(whole - (first + second) / 2) <= 1e-3 * abs(whole)
    if is_mean and abs(whole - (first + second)) > 0.1 * abs(whole):
        raise InputError(
            "the loss",
            f"it looks like a mean: {whole:.4g} over {2 * half} samples, over the halves {first:.4g} and"
            f" {second:.4g}",
            "return one loss a sample, shape (B,), or their sum (reduction='none' or 'sum')",
        )


def _halves(micro: MicroBatch, half: int) -> tuple[MicroBatch, MicroBatch]:
    first = micro.map_tensors(lambda t: t[:half])
    return first, micro.map_tensors(lambda t: t[half : 2 * half]) if micro.size >= 2 else first
