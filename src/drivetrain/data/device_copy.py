"""Micro-batches to the device, beside the computation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drivetrain.data.batch import MicroBatch


@dataclass(frozen=True, kw_only=True, eq=False)
class _Copy:
    micro: MicroBatch
    done: torch.cuda.Event | None = None


class DeviceCopier:
    """Copies micro-batches to `device`: on CUDA on a stream of its own, so that the copy of the next one runs
    while the current one computes; on the CPU nothing is copied.

    Args:
        reuse: micro-batches of one size hold the same data (a prepared synthetic data set): copy it once.
    """

    def __init__(self, device: torch.device, *, reuse: bool = False) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._reuse = reuse
        # By size and valid samples: a padding slot and a batch of one sample differ in weight.
        self._kept: dict[tuple[int, float], MicroBatch] = {}

    def copy(self, micro: MicroBatch) -> MicroBatch:
        """`micro` on the device, safe to use in the current stream. The host does not wait."""
        return self._hand_over(self._start(micro))

    def copy_each(self, micro_batches: Iterable[MicroBatch]) -> Iterator[MicroBatch]:
        """Each of `micro_batches` on the device; the next one's copy is under way when one is handed out."""
        ahead: _Copy | None = None
        for micro in micro_batches:
            started = self._start(micro)
            if ahead is not None:
                yield self._hand_over(ahead)
            ahead = started
        if ahead is not None:
            yield self._hand_over(ahead)

    def _start(self, micro: MicroBatch) -> _Copy:
        kept = self._kept.get((micro.size, micro.num_valid))
        if kept is not None:
            return _Copy(micro=replace(kept, ids=micro.ids, positions=micro.positions))
        if self._stream is None:
            return _Copy(micro=micro if self._device.type == "cpu" else micro.to(self._device))
        with torch.cuda.stream(self._stream):
            moved = micro.to(self._device, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
        return _Copy(micro=moved, done=done)

    def _hand_over(self, copy: _Copy) -> MicroBatch:
        if copy.done is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(copy.done)

            # The memory belongs to the copying stream's pool; without this it would be given to a later copy
            # while the computation still reads it.
            def used_here(tensor: Tensor) -> Tensor:
                if tensor.is_cuda:
                    tensor.record_stream(current)
                return tensor

            copy.micro.map_tensors(used_here)
        if self._reuse:
            self._kept.setdefault((copy.micro.size, copy.micro.num_valid), copy.micro)
        return copy.micro
