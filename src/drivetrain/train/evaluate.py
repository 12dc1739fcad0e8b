"""Evaluation over all ranks, each sample counted once."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from drivetrain.data.batch import MicroBatch
from drivetrain.engine.buffers import averaged_buffers
from drivetrain.engine.objective import Objective
from drivetrain.engine.state import TrainState
from drivetrain.engine.strategies.base import EvaluationForward
from drivetrain.engine.world import World

UpdateMetric = Callable[[Any, Any, MicroBatch], None]


def evaluate(
    state: TrainState,
    world: World,
    batches: Iterable[MicroBatch],
    objective: Objective,
    metrics: Mapping[str, Any],
    *,
    update: UpdateMetric,
    forwards: contextlib.AbstractContextManager[EvaluationForward],
    is_counted: bool,
    is_over: Callable[[], bool],
) -> dict[str, float] | None:
    """Metrics of the bare model over this rank's `batches`, on its device, and everybody else's.

    Called by all ranks; the model is called without its wrapper, and results are shared at the end. Uses the
    moving average of the weights where there is one, and the mean of the ranks' running statistics.

    Args:
        forwards: the strategy's, around the forward passes.
        is_over: asked before each batch whether to end early, on all ranks at the same one.
        is_counted: whether this rank counts its samples, see `Layout.is_counted`.

    Returns:
        The metrics by name, and `loss`, the mean over all valid samples; None where it was ended early.
    """
    module, device = state.module, world.device
    was_training = module.training
    module.eval()
    average = state.ema.swapped_in() if state.ema is not None else contextlib.nullcontext()
    for metric in metrics.values():
        metric.to(device)
        metric.reset()
    is_whole = True
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    with averaged_buffers(module, world, state.replicas), average, forwards as forward, torch.no_grad():
        for placed in batches:
            if is_over():
                is_whole = False
                break
            output = forward(objective.inputs(placed))
            if not is_counted:
                continue
            sums[0] += objective.loss_sum(output, placed)
            sums[1] += objective.weight_of(placed)
            # Padding keeps the ranks in step; metrics must not see it, and some cannot take an empty batch.
            for metric in metrics.values() if placed.num_valid else ():
                update(metric, output, placed)
    module.train(was_training)
    if not is_whole:
        return None
    if world.size > 1:
        dist.all_reduce(sums)
    loss_sum, weight = sums.tolist()
    results = {name: _compute(metric) for name, metric in metrics.items()}
    return {"loss": loss_sum / weight if weight else float("nan"), **results}


def update_with_targets(metric: Any, output: Any, micro: MicroBatch) -> None:
    """Feeds a torchmetrics metric with the outputs and targets of the valid samples."""
    valid = micro.weight > 0
    metric.update(output[valid], micro.y[valid])


def _compute(metric: Any) -> float:
    """The metric over all ranks; torchmetrics gathers the states of all."""
    with warnings.catch_warnings():
        # A rank without a batch never updated its metric, which is right here and would warn.
        warnings.filterwarnings("ignore", message="The ``compute`` method of metric", category=UserWarning)
        return float(metric.compute())
