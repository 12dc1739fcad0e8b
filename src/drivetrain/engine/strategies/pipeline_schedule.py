"""One training step through a pipeline: torch's schedules, fed with micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from drivetrain.data.batch import MicroBatch
from drivetrain.engine.objective import Objective
from drivetrain.engine.settings import PipelineSchedule
from drivetrain.engine.step import StepScope, refuse_detached
from drivetrain.engine.strategies.pipeline_forward import ForwardLine, Line, Shapes, Stage, joined, signature
from drivetrain.spec.errors import ExplainedError, InputError
from drivetrain.spec.parts import StepPart

SPLITS_BACKWARD = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)
"""Whether torch's split of a backward into that of inputs and that of weights is right. Before, it added up
the gradients of a node's several outputs, counted some twice, and failed at nodes in Python (2.11)."""


@dataclass
class Feed:
    """The step that runs now."""

    scope: StepScope
    objective: Objective
    micro_batches: Sequence[MicroBatch]


class TrainingLine:
    """Forward and backward of all micro-batches of a step, in the order of a schedule.

    torch's schedules receive into buffers of fixed shape: all micro-batches of a step are padded to one size
    with slots of weight 0. When another step has other shapes, they are set up anew.

    Args:
        num_stages: of all ranks together.
        micro_batch: samples, the size that all micro-batches are padded to.
    """

    def __init__(
        self,
        line: Line,
        forward: ForwardLine,
        schedule: PipelineSchedule,
        *,
        num_stages: int,
        micro_batch: int,
    ) -> None:
        self._line = line
        self._forward = forward
        self._kind = schedule
        self._num_stages = num_stages
        self._micro_batch = micro_batch
        self._ready_for: Any = None
        self._runtime: Any = None
        self._chunks: list[_Chunks] = []

    def run(self, scope: StepScope, objective: Objective) -> None:
        """Called by all ranks of the pipeline. Gradients are this rank's, of its own samples alone.

        Raises:
            InputError: micro-batches of one step differ in shape.
        """
        micro_batches = [padded(micro, self._micro_batch) for micro in scope.micro_batches()]
        self._prepare(objective, micro_batches)
        feed = Feed(scope, objective, micro_batches)
        for chunk in self._chunks:
            chunk.feed(feed)
        scope.mark(StepPart.HOST_TO_DEVICE)
        numbers = torch.arange(len(micro_batches))
        has_first = self._line.stages[0].part.is_first
        has_last = self._line.stages[-1].part.is_last
        try:
            self._runtime.step(
                *((numbers,) if has_first else ()),
                target=numbers if has_last else None,
                return_outputs=False,
            )
        except RuntimeError as error:
            raise _own_cause(error) from error
        finally:
            for chunk in self._chunks:
                chunk.feed(None)
        scope.mark(StepPart.EXPOSED_COMM)
        if not has_last:
            scope.add_loss(torch.zeros((), device=self._line.device))

    def _prepare(self, objective: Objective, micro_batches: Sequence[MicroBatch]) -> None:
        shapes = {signature(micro.data) for micro in micro_batches}
        if len(shapes) > 1:
            different = " and ".join(
                ", ".join(str(size) for size, _ in part) for part in sorted(shapes, key=str)
            )
            raise InputError(
                "strategy pipeline",
                f"the micro-batches of one step have different shapes: {different}",
                "give all samples one shape, or use another strategy",
            )
        if (shapes, len(micro_batches)) == self._ready_for:
            return
        handed = self._forward.shapes(objective.inputs(micro_batches[0]))
        self._chunks = [self._chunk(stage, *handed[stage.part.index]) for stage in self._line.stages]
        self._runtime = self._schedule(len(micro_batches))
        self._ready_for = (shapes, len(micro_batches))

    def _chunk(self, stage: Stage, received: Shapes, sent: Shapes) -> _Chunks:
        # What goes into the first stage is the number of a micro-batch, and out of the last comes its loss.
        inputs = (torch.empty(1, dtype=torch.int64, device="meta"),) if stage.part.is_first else received
        outputs = (torch.empty((), device="meta"),) if stage.part.is_last else sent
        return _Chunks(
            _StageModule(stage, self._line),
            stage.part.index,
            self._num_stages,
            self._line.device,
            input_args=tuple(_trained(tensor) for tensor in inputs),
            output_args=tuple(_trained(tensor) for tensor in outputs),
            group=self._line.group,
            dw_builder=None if SPLITS_BACKWARD else _nothing_left,
        )

    def _schedule(self, num_micro_batches: int) -> Any:
        # The loss is scaled before the backward; the schedule would divide by the number of micro-batches.
        options: dict[str, Any] = {"loss_fn": _already_a_loss, "scale_grads": False}
        if self._kind in ("interleaved", "zero_bubble"):
            several = ScheduleInterleaved1F1B if self._kind == "interleaved" else ScheduleZBVZeroBubble
            return several([*self._chunks], num_micro_batches, **options)
        (chunk,) = self._chunks
        kind = ScheduleGPipe if self._kind == "gpipe" else Schedule1F1B
        return kind(chunk, num_micro_batches, **options)


def padded(micro: MicroBatch, size: int) -> MicroBatch:
    """`micro` with slots of weight 0 up to `size`."""
    missing = size - micro.size
    if not missing:
        return micro
    longer = micro.map_tensors(lambda t: torch.cat([t, t.new_zeros((missing, *t.shape[1:]))]))
    for numbers in (longer.ids, longer.positions):
        numbers[micro.size :] = -1
    return longer


def _trained(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.is_floating_point())


def _nothing_left() -> Callable[[], None]:
    """The backward of weights, where that of inputs has computed it too."""
    return lambda: None


def _already_a_loss(output: Tensor, target: Tensor) -> Tensor:  # noqa: ARG001 - torch's signature
    return output


def _own_cause(error: BaseException) -> BaseException:
    """What this project raised inside torch's schedule, which wraps it; else what the schedule raised."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ExplainedError):
            return cause
        cause = cause.__cause__
    return error


class _Chunks(PipelineStage):
    """torch's stage, that says which micro-batch comes and where the time goes."""

    submod: _StageModule

    def feed(self, feed: Feed | None) -> None:
        self.submod.feed = feed

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self._mark(StepPart.EXPOSED_COMM)
        self.submod.micro_batch = fwd_chunk_id
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self._mark(StepPart.FORWARD)
        return output

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        self._mark(StepPart.EXPOSED_COMM)
        super().backward_one_chunk(*args, **kwargs)
        self._mark(StepPart.BACKWARD)

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        self._mark(StepPart.EXPOSED_COMM)
        super().backward_weight_one_chunk(*args, **kwargs)
        self._mark(StepPart.BACKWARD)

    def _get_init_p2p_neighbors_ops(self) -> list[Any]:
        # torch 2.11 greets the neighbours of each stage before the first step, itself among them where two
        # stages in a row are on one rank; gloo cannot send to itself.
        greetings = super()._get_init_p2p_neighbors_ops()
        return [greeting for greeting in greetings if greeting.group_peer != self.group_rank]

    def _mark(self, part: StepPart) -> None:
        if self.submod.feed is not None:
            self.submod.feed.scope.mark(part)


class _StageModule(nn.Module):
    """A stage as torch's schedules call it: with what the stage before sent, or a micro-batch's number."""

    def __init__(self, stage: Stage, line: Line) -> None:
        super().__init__()
        self._stage = (stage,)  # not registered: the rank's module owns the parameters
        self._line = line
        self.feed: Feed | None = None
        self.micro_batch = 0

    def parameters(self, recurse: bool = True) -> Any:
        """Those of all stages of this rank: the schedule looks for gradients among them."""
        return self._stage[0].module.parameters()

    def forward(self, *received: Tensor) -> Any:
        (stage,), feed = self._stage, self.feed
        assert feed is not None
        part, micro = stage.part, feed.micro_batches[self.micro_batch]
        feed.scope.seed_random(self.micro_batch, stage=part.index)
        hidden = None if part.is_first else joined(tuple(_Contiguous.apply(tensor) for tensor in received))
        inputs = feed.objective.inputs(micro) if part.is_first or part.is_last else None
        with self._line.autocast():
            output = stage(inputs, hidden)
        if not part.is_last:
            return stage.tensors(output)
        loss_sum = feed.objective.loss_sum(output, micro)
        refuse_detached(loss_sum)
        feed.scope.add_loss(loss_sum)
        return (loss_sum * feed.scope.gradient_scale).float()


class _Contiguous(torch.autograd.Function):
    """Nothing in the forward; what is sent back must lie in memory as the other side expects."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:  # noqa: ARG004 - torch's signature
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return gradient.contiguous()
