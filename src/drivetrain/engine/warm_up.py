"""The throw-away computation at every start, that leaves no trace in the state."""

from __future__ import annotations

import torch

from drivetrain.data.batch import MicroBatch
from drivetrain.data.draw import restored_globals
from drivetrain.engine.objective import Objective
from drivetrain.engine.state import TrainState
from drivetrain.engine.step import forward_loss
from drivetrain.engine.strategies.base import Strategy
from drivetrain.engine.world import World


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
            notes = strategy.warm_up(
                state, lambda: torch.autograd.backward(forward_loss(state, objective, micro))
            )
    with torch.no_grad():
        for name, buffer in state.module.named_buffers():
            buffer.copy_(buffers[name])
    return notes
