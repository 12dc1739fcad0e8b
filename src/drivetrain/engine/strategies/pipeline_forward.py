"""The stages of one rank, and forward passes through those of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drivetrain.data.batch import map_tensors
from drivetrain.engine.objective import call_model
from drivetrain.engine.stages import Cut, StagePart
from drivetrain.spec.errors import InputError

Shapes = tuple[Tensor, ...]
"""What one stage hands to the next, on the meta device."""


class Stage:
    """One stage of a model: its layers, with what precedes the first or follows the last."""

    def __init__(self, module: nn.Module, cut: Cut, part: StagePart) -> None:
        self.module = module
        self.part = part
        self._cut = cut

    def __call__(self, inputs: Any, received: Any) -> Any:
        """
        Args:
            inputs: what the whole model is called with; only the first and the last stage look at it.
            received: what the stage before gave; nothing to the first.
        """
        hidden = call_model(self._cut.before, inputs) if self.part.is_first else received
        for name in self.part.layers:
            hidden = self.module.get_submodule(name)(hidden)
        return self._finish(hidden, inputs) if self.part.is_last else hidden

    def _finish(self, hidden: Any, inputs: Any) -> Any:
        if isinstance(inputs, tuple):
            return self._cut.after(hidden, *inputs[1:])
        if isinstance(inputs, dict):
            return self._cut.after(hidden, **dict(list(inputs.items())[1:]))
        return self._cut.after(hidden)

    def tensors(self, hidden: Any) -> tuple[Tensor, ...]:
        """What is sent to the next stage.

        Raises:
            InputError: it is not made of floating-point tensors.
        """
        tensors = hidden if isinstance(hidden, tuple) else (hidden,)
        if not tensors or not all(isinstance(t, Tensor) and t.is_floating_point() for t in tensors):
            raise InputError(
                f"stage {self.part.index} of {type(self.module).__name__}",
                f"its last layer gave {' and '.join(_kind(item) for item in tensors) or 'nothing'}",
                "cut it where a floating-point tensor, or a tuple of such, goes from layer to layer",
            )
        return tuple(tensor.contiguous() for tensor in tensors)


def _kind(item: Any) -> str:
    return f"a tensor of {item.dtype}" if isinstance(item, Tensor) else f"a {type(item).__name__}"


def joined(tensors: tuple[Tensor, ...]) -> Any:
    """What was sent, as the next stage's first layer takes it."""
    return tensors[0] if len(tensors) == 1 else tensors


@dataclass(frozen=True, kw_only=True)
class Line:
    """Where all stages are, and how this rank talks to those before and after its own.

    Attributes:
        stages: this rank's, in order.
        place_of: where in the pipeline a stage is.
        place: where this rank is.
        group, hosts: see `pipeline_groups.Groups`.
        autocast: the run's precision.
    """

    stages: Sequence[Stage]
    place_of: Callable[[int], int]
    place: int
    group: dist.ProcessGroup
    hosts: dist.ProcessGroup
    device: torch.device
    autocast: Callable[[], AbstractContextManager[None]]

    def is_here(self, stage: int) -> bool:
        return self.place_of(stage) == self.place

    def rank_of(self, stage: int) -> int:
        """The global rank that has `stage`."""
        return dist.get_global_rank(self.group, self.place_of(stage))


class ForwardLine:
    """Forward passes alone, through all stages, one batch after another.

    Where each rank has one stage, it goes on to the next batch as soon as it has sent the one before: stage s
    computes batch k while stage s − 1 computes batch k + 1. A rank that has several waits for each batch to
    come round.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._received: dict[Any, dict[int, Shapes]] = {}
        self._sent: dict[Any, dict[int, Shapes]] = {}
        self._sending: list[tuple[dist.Work, Tensor]] = []

    def __call__(self, inputs: Any) -> Any:
        """The model's output for `inputs`, on the rank that has the last stage. Called by all ranks of the
        pipeline, with inputs of the same shapes."""
        self._let_go(keep=8)
        line, key = self._line, signature(inputs)
        output, hidden = None, None
        for stage in line.stages:
            index = stage.part.index
            if not stage.part.is_first and not line.is_here(index - 1):
                hidden = joined(self._receive(key, index))
            with line.autocast():
                hidden = stage(inputs, hidden)
            if stage.part.is_last:
                output = hidden
            else:
                self._send(key, index, stage.tensors(hidden))
        return output

    def finish(self) -> None:
        """Waits until everything that was sent has arrived."""
        self._let_go(keep=0)

    @torch.no_grad()
    def shapes(self, inputs: Any) -> dict[int, tuple[Shapes, Shapes]]:
        """What each of this rank's stages receives and sends for inputs of these shapes; nothing where the
        first or the last. Called by all ranks of the pipeline: the first time it computes a forward, which
        leaves no trace in buffers."""
        key = signature(inputs)
        if not self._knows(key):
            modules = {id(stage.module): stage.module for stage in self._line.stages}.values()
            kept = [(buffer, buffer.detach().clone()) for m in modules for buffer in m.buffers()]
            self(inputs)
            self.finish()
            for buffer, before in kept:
                buffer.copy_(before)
        received, sent = self._received.get(key, {}), self._sent.get(key, {})
        return {
            stage.part.index: (received.get(stage.part.index, ()), sent.get(stage.part.index, ()))
            for stage in self._line.stages
        }

    def _knows(self, key: Any) -> bool:
        return key in self._received or key in self._sent

    def _send(self, key: Any, index: int, tensors: Shapes) -> None:
        line = self._line
        known = self._sent.setdefault(key, {})
        shapes = tuple(tensor.detach().to("meta") for tensor in tensors)
        is_new = index not in known
        known[index] = shapes
        if line.is_here(index + 1):
            self._received.setdefault(key, {})[index + 1] = shapes
            return
        to = line.rank_of(index + 1)
        if is_new:
            words = [[(tuple(shape.shape), shape.dtype) for shape in shapes]]
            dist.send_object_list(words, dst=to, group=line.hosts, device=torch.device("cpu"))
        for tensor in tensors:
            work = dist.isend(tensor.detach(), dst=to, group=line.group)
            assert work is not None
            self._sending.append((work, tensor))

    def _receive(self, key: Any, index: int) -> Shapes:
        line = self._line
        known = self._received.setdefault(key, {})
        origin = line.rank_of(index - 1)
        if index not in known:
            words: list[Any] = [None]
            dist.recv_object_list(words, src=origin, group=line.hosts, device=torch.device("cpu"))
            known[index] = tuple(torch.empty(size, dtype=dtype, device="meta") for size, dtype in words[0])
        tensors = tuple(torch.empty_like(shape, device=line.device) for shape in known[index])
        for tensor in tensors:
            dist.recv(tensor, src=origin, group=line.group)
        return tensors

    def _let_go(self, *, keep: int) -> None:
        """Waits for all that is under way but the latest `keep`, so that it does not pile up."""
        while len(self._sending) > keep:
            work, _ = self._sending.pop(0)
            work.wait()


def signature(inputs: Any) -> Any:
    """Equal for inputs whose tensors have equal shapes and types."""
    shapes: list[Any] = []

    def note(tensor: Tensor) -> Tensor:
        shapes.append((tuple(tensor.shape), tensor.dtype))
        return tensor

    map_tensors(inputs, note)
    return tuple(shapes)
