"""One optimizer step: micro-batches, weighted gradients, clipping, and the word about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import torch
from torch import Tensor

from drivetrain.data.batch import MicroBatch, StepBatch
from drivetrain.engine.certificate import samples_sum, weights_sum
from drivetrain.engine.control import ControlChannel, LocalWord, WeightTotals
from drivetrain.engine.objective import Objective, call_model
from drivetrain.engine.optimizers import step_unless
from drivetrain.engine.state import TrainState
from drivetrain.engine.strategies.base import Strategy
from drivetrain.engine.world import World
from drivetrain.spec.errors import InputError
from drivetrain.spec.layout import Layout
from drivetrain.spec.parts import StepPart


class PartMarker(Protocol):
    """What cuts a step into parts."""

    def mark(self, part: StepPart) -> None: ...


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """What all steps of a run share.

    Attributes:
        device_batches: the micro-batches of a step on this rank's device.
        latest_timing: seconds of the latest step that is timed in full, and of its data wait; NaN at first.
        save_due, save_failed, stop_wish: see `LocalWord`.
        skips_nonfinite: whether a step whose gradient's norm is not finite changes nothing.
        is_verified: whether the weights' bits are summed after so many steps; the same on every rank.
        when_applied: told of each finished step.
    """

    world: World
    layout: Layout
    strategy: Strategy
    clock: PartMarker
    control: ControlChannel
    totals: WeightTotals
    seed: int
    device_batches: Callable[[StepBatch], Iterator[MicroBatch]]
    latest_timing: Callable[[], tuple[float, float]]
    save_due: Callable[[], bool]
    save_failed: Callable[[], bool]
    stop_wish: Callable[[], int]
    skips_nonfinite: bool
    is_verified: Callable[[int], bool]
    when_applied: Callable[[StepBatch, StepOutput], None]


class StepOutput:
    """What a step gave. `loss` is lazy: it waits for the other ranks' part only when read."""

    def __init__(self, step: int, control: ControlChannel, lr: float) -> None:
        self.step = step
        self.lr = lr
        self._control = control

    @property
    def loss(self) -> float:
        """The mean loss over the global batch."""
        return self._control.wait_for(self.step).loss

    @property
    def grad_norm(self) -> float | None:
        """The gradient's norm before clipping; None if nothing was clipped."""
        return self._control.wait_for(self.step).grad_norm


class StepScope:
    """One step, open. Use it as a context manager, in this order: `micro_batches` and `backward` for each,
    then `clip` if wanted, then `apply`.

    Args:
        weight_of: the weight of a micro-batch's loss sum.
        static_total: the sum of weights over ranks where it is the same every step and need not be asked for
            (every sample weighs 1 and none can be skipped); else None.
    """

    def __init__(
        self,
        context: StepContext,
        state: TrainState,
        batch: StepBatch,
        *,
        weight_of: Callable[[MicroBatch], float],
        static_total: float | None,
    ) -> None:
        if batch.index != state.step:
            raise RuntimeError(
                f"the state stands at step {state.step}, the batch is that of step {batch.index}: "
                "a batch was skipped or used twice"
            )
        self._context = context
        self._state = state
        self._batch = batch
        # Of ranks that see the same samples one counts them.
        self._is_counted = context.layout.is_counted(context.world.rank)
        weight = float(sum(weight_of(micro) for micro in batch.micro_batches))
        self._local_weight = weight if self._is_counted else 0.0
        self._static_total = static_total
        self._pending_total = None if static_total is not None else context.totals.start(self._local_weight)
        self._scale: float | None = None
        self._loss_sum: Tensor | None = None
        self._grad_norm: Tensor | None = None
        self._lr = state.set_learning_rates()
        self.output: StepOutput | None = None

    def __enter__(self) -> StepScope:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self.output is None:
            raise RuntimeError("the step ended without apply(): its gradients would leak into the next step")

    def micro_batches(self) -> Iterator[MicroBatch]:
        """This rank's micro-batches, on its device. Gradients are reduced over ranks only at the last."""
        context, last = self._context, len(self._batch.micro_batches) - 1
        for index, micro in enumerate(context.device_batches(self._batch)):
            context.strategy.set_gradient_sync(self._state, index == last)
            self.seed_random(index)
            context.clock.mark(StepPart.HOST_TO_DEVICE)
            yield micro

    def seed_random(self, micro_batch: int, *, stage: int = 0) -> None:
        """Seeds what draws in a forward (dropout): the same for a step however the run came to it, another
        for each micro-batch, data rank and stage of a pipeline."""
        context = self._context
        data_rank = context.layout.data_rank(context.world.rank)
        stages = (stage,) if stage else ()
        torch.manual_seed(_mix(context.seed, self._batch.index, micro_batch, data_rank, *stages))

    def mark(self, part: StepPart) -> None:
        """Gives the time since the last mark to `part`; for strategies that run the backward themselves."""
        self._context.clock.mark(part)

    def backward(self, loss_sum: Tensor) -> None:
        """Gradients of a micro-batch's weighted SUM of losses, scaled to the mean over the global batch."""
        context = self._context
        context.clock.mark(StepPart.FORWARD)
        refuse_detached(loss_sum)
        scaled = loss_sum * self.gradient_scale
        if self._state.scaler is not None:
            scaled = self._state.scaler.scale(scaled)
        torch.autograd.backward(scaled)
        self.add_loss(loss_sum)
        context.clock.mark(StepPart.BACKWARD)

    @property
    def gradient_scale(self) -> float:
        """What a loss sum is multiplied by before the backward."""
        if self._scale is None:
            total = self._total_weight()
            # Gradients are averaged over data ranks, and a mean is to come out that is over all samples.
            self._scale = self._context.layout.num_data_ranks / total if total else 0.0
        return self._scale

    def add_loss(self, loss_sum: Tensor) -> None:
        """Counts a micro-batch's loss; for strategies that run the backward themselves."""
        detached = loss_sum.detach()
        self._loss_sum = detached if self._loss_sum is None else self._loss_sum + detached

    def clip(self, max_norm: float) -> None:
        """Clips the gradient to the global norm `max_norm`."""
        if not self._total_weight():
            return  # every sample of the step was skipped: there is no gradient, and no update
        if self._state.scaler is not None:
            self._state.scaler.unscale_(self._state.optimizer)
        self._grad_norm = self._context.strategy.clip(self._state, max_norm)

    def apply(self) -> StepOutput:
        """The optimizer's step. Afterwards the state stands one step further."""
        state, context = self._state, self._context
        if self._loss_sum is None:
            raise RuntimeError("apply() before any backward(): there is no gradient")
        loss_sum = self._loss_sum if self._is_counted else torch.zeros_like(self._loss_sum)
        if self._total_weight():
            if context.skips_nonfinite and self._grad_norm is None:
                self.clip(math.inf)
            self._update()
        state.optimizer.zero_grad(set_to_none=True)
        state.step += 1
        state.position += self._batch.num_samples
        context.clock.mark(StepPart.OPTIMIZER)
        context.control.post(
            self._batch.index,
            self._local_word(),
            loss_sum=loss_sum,
            grad_norm=self._grad_norm,
            weights_sum=weights_sum(state.module) if context.is_verified(state.step) else None,
        )
        self.output = StepOutput(self._batch.index, context.control, self._lr)
        context.when_applied(self._batch, self.output)
        return self.output

    def _update(self) -> None:
        state = self._state
        if state.scaler is not None:
            state.scaler.step(state.optimizer)
            state.scaler.update()
        elif self._context.skips_nonfinite:
            assert self._grad_norm is not None
            step_unless(state.optimizer, ~torch.isfinite(self._grad_norm))
        else:
            state.optimizer.step()
        if state.ema is not None:
            state.ema.update()

    def _total_weight(self) -> float:
        if self._pending_total is None:
            assert self._static_total is not None
            return self._static_total
        return self._pending_total.value()

    def _local_word(self) -> LocalWord:
        step_s, data_wait_s = self._context.latest_timing()
        return LocalWord(
            weight=self._local_weight,
            num_samples=self._is_counted * sum(micro.size for micro in self._batch.micro_batches),
            samples_sum=samples_sum(self._batch.micro_batches) if self._is_counted else 0,
            step_s=step_s,
            data_wait_s=data_wait_s,
            save=self._context.save_due(),
            stop=self._context.stop_wish(),
            save_failed=self._context.save_failed(),
        )


def run_micro_batches(state: TrainState, scope: StepScope, objective: Objective) -> None:
    """Forward and backward of each micro-batch: what single, DDP and their kind do."""
    for micro in scope.micro_batches():
        scope.backward(forward_loss(state, objective, micro))


def forward_loss(state: TrainState, objective: Objective, micro: MicroBatch) -> Tensor:
    """The weighted sum of losses of one micro-batch on the device, with its graph."""
    loss_sum = objective.loss_sum(call_model(state.model, objective.inputs(micro)), micro)
    refuse_detached(loss_sum)
    return loss_sum


def refuse_detached(loss_sum: Tensor) -> None:
    """
    Raises:
        InputError: no gradient can come from this loss.
    """
    if not loss_sum.requires_grad:
        raise InputError(
            "the loss",
            "it does not depend on any parameter that requires a gradient",
            "compute it from the model's output, without detach(), item() or no_grad()",
        )


def _mix(*numbers: int) -> int:
    """A 63-bit seed from small integers: splitmix64's finaliser over each in turn (Steele et al. 2014)."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state + (number & 0xFFFFFFFFFFFFFFFF) + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1
