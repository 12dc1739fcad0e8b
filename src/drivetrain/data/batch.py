"""What a rank computes on: micro-batches, and the step they make up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from drivetrain.data.bad_samples import SkippedSample
from drivetrain.spec.errors import InputError

_X_KEYS = ("x", "image")
_Y_KEYS = ("y", "label")
PADDING_ID = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class MicroBatch:
    """B samples that go through the model together.

    Attributes:
        data: the samples collated: a tensor, tuple, list or dict of tensors (B, …).
        weight: (B,) float32; 1 for a valid sample, 0 for a skipped one or padding.
        num_valid: the sum of `weight`, known on the host without a sync.
        ids: (B,) int64, indices in the data set; -1 for padding.
        positions: (B,) int64, positions in the stream; -1 for padding. In an evaluation: the indices.
        skipped: the bad samples among them, in order.
        params: the drawn augmentation parameters collated, (B, …); None where nothing was drawn.
    """

    data: Any
    weight: Tensor
    num_valid: float
    ids: Tensor
    positions: Tensor
    skipped: tuple[SkippedSample, ...] = ()
    params: Any = None

    @property
    def size(self) -> int:
        """Slots in this micro-batch, valid or not."""
        return self.weight.shape[0]

    @property
    def x(self) -> Any:
        """The model's input: the first of a tuple, or "x" or "image" of a dict."""
        return _part(self.data, 0, _X_KEYS)

    @property
    def y(self) -> Any:
        """The target: the second of a tuple, or "y" or "label" of a dict."""
        return _part(self.data, 1, _Y_KEYS)

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> MicroBatch:
        """A micro-batch with `change` applied to each tensor."""
        return replace(
            self,
            data=map_tensors(self.data, change),
            weight=change(self.weight),
            ids=change(self.ids),
            positions=change(self.positions),
            params=map_tensors(self.params, change),
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> MicroBatch:
        """A copy on `device`. `ids` and `positions` stay on the host, which alone reads them."""
        return replace(
            self,
            data=map_tensors(self.data, lambda tensor: tensor.to(device, non_blocking=non_blocking)),
            weight=self.weight.to(device, non_blocking=non_blocking),
            params=map_tensors(self.params, lambda tensor: tensor.to(device, non_blocking=non_blocking)),
        )

    def pin_memory(self) -> MicroBatch:
        """A copy whose device-bound tensors lie in page-locked memory, which a GPU reads while computing."""
        return replace(
            self,
            data=map_tensors(self.data, Tensor.pin_memory),
            weight=self.weight.pin_memory(),
            params=map_tensors(self.params, Tensor.pin_memory),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # The short tensors travel from a worker as bytes: a shared-memory file and its descriptor each would
        # cost more than their content, and descriptors run out (ulimit -n).
        small = (self.weight.cpu().numpy(), self.ids.numpy(), self.positions.numpy())
        return _rebuild, (self.data, *small, self.num_valid, self.skipped, self.params)


@dataclass(frozen=True, kw_only=True, eq=False)
class StepBatch:
    """One rank's part of a global batch.

    Attributes:
        index: the optimizer step, from 0.
        position: samples consumed by all ranks before this step.
        micro_batches: `plan.accumulation` of them on every rank.
        num_samples: samples of the global batch, over all ranks, bad ones included.
    """

    index: int
    position: int
    micro_batches: tuple[MicroBatch, ...]
    num_samples: int


def map_tensors(data: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`data` with `change` applied to each tensor in its tuples, lists and dicts; other leaves as they
    are."""
    if isinstance(data, Tensor):
        return change(data)
    if isinstance(data, Mapping):
        return {key: map_tensors(value, change) for key, value in data.items()}
    if isinstance(data, tuple):
        parts = [map_tensors(value, change) for value in data]
        return type(data)(*parts) if hasattr(data, "_fields") else tuple(parts)
    if isinstance(data, list):
        return [map_tensors(value, change) for value in data]
    return data


def _part(data: Any, place: int, keys: tuple[str, ...]) -> Any:
    if isinstance(data, (tuple, list)) and len(data) > place:
        return data[place]
    if isinstance(data, Mapping):
        for key in keys:
            if key in data:
                return data[key]
    if isinstance(data, Tensor) and place == 0:
        return data
    kind = type(data).__name__
    if isinstance(data, Mapping):
        kind = f"a dict with the keys {', '.join(map(repr, data))}"
    elif isinstance(data, (tuple, list)):
        kind = f"a {kind} of {len(data)}"
    raise InputError(
        f"the {'input (x)' if place == 0 else 'target (y)'} of a micro-batch",
        f"the samples are {kind}",
        f"return a tuple (x, y) or a dict with {keys[0]!r} or {keys[1]!r} from dataset[i], or read micro.data"
        " in your own objective",
    )


def _rebuild(
    data: Any, weight: Any, ids: Any, positions: Any, num_valid: float, skipped: Any, params: Any
) -> MicroBatch:
    return MicroBatch(
        data=data,
        weight=torch.from_numpy(weight),
        num_valid=num_valid,
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        skipped=skipped,
        params=params,
    )
