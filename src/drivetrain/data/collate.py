"""From single samples to a micro-batch's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import default_collate

from drivetrain.spec.errors import InputError


def collate(samples: Sequence[Any], ids: Sequence[int], dataset: Any) -> Any:
    """Stacks samples of one structure: tensors and arrays (…) become (B, …), numbers (B,), tuples and dicts
    of them keep their form. In a worker process the result lies in shared memory.

    Raises:
        InputError: the samples differ in shape or keys, or hold something that is no tensor, array or number.
    """
    try:
        return default_collate(list(samples))
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        raise InputError(
            f"a micro-batch of {len(samples)} samples of {type(dataset).__name__}",
            _what_differs(samples, ids) or f"{type(error).__name__}: {str(error).splitlines()[0]}",
            "return tensors, arrays or numbers of one shape from dataset[i] or render: resize or pad there",
        ) from error


def zeros_like_sample(sample: Any) -> Any:
    """A sample of the same structure and shapes, all zero: what stands in a skipped sample's slot."""
    if isinstance(sample, Tensor):
        return sample.new_zeros(sample.shape)
    if isinstance(sample, np.ndarray):
        return np.zeros_like(sample)
    if isinstance(sample, Mapping):
        return {key: zeros_like_sample(value) for key, value in sample.items()}
    if isinstance(sample, tuple):
        parts = [zeros_like_sample(value) for value in sample]
        return type(sample)(*parts) if hasattr(sample, "_fields") else tuple(parts)
    if isinstance(sample, list):
        return [zeros_like_sample(value) for value in sample]
    if isinstance(sample, (bool, int, float, complex, str, bytes, np.generic)):
        return type(sample)()
    return sample


def _what_differs(samples: Sequence[Any], ids: Sequence[int]) -> str | None:
    """The first sample whose shapes differ from the first one's, in words."""
    shapes = [_shape(sample) for sample in samples]
    for sample_id, shape in zip(ids, shapes, strict=True):
        if shape != shapes[0]:
            return f"sample {ids[0]} is {shapes[0]}, but sample {sample_id} is {shape}"
    return f"each sample is {shapes[0]}" if samples else None


def _shape(value: Any) -> str:
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_shape(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({', '.join(map(_shape, value))})"
    return type(value).__name__
