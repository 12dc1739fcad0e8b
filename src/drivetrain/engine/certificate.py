"""What a run can be held to afterwards: which samples it consumed, and that its replicas are the same.

Numbers here travel in the control word as float64, which is exact up to 2⁵³.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from drivetrain.data.batch import MicroBatch
from drivetrain.engine.state import local_part
from drivetrain.spec.layout import Layout

MODULUS = 2**52
FIRST_LINK = "0" * 32


def samples_sum(micro_batches: Iterable[MicroBatch]) -> int:
    """A sum over samples of a hash of (position, id), below `MODULUS`: added up over ranks it says which
    samples a step consumed, however they were shared."""
    total = 0
    for micro in micro_batches:
        positions = micro.positions.numpy().astype(np.uint64)
        ids = micro.ids.numpy().astype(np.uint64)
        is_sample = micro.positions.numpy() >= 0
        total += int(_mixed(_mixed(positions) ^ ids)[is_sample].sum(dtype=np.uint64))
    return total % MODULUS


def next_link(link: str, samples: int) -> str:
    """The chain after a step whose samples sum to `samples`: 32 hex digits that stand for all before too."""
    return hashlib.blake2b(f"{link} {samples % MODULUS}".encode(), digest_size=16).hexdigest()


@torch.no_grad()
def weights_sum(module: nn.Module) -> Tensor:
    """The sum of all bits that this rank holds of the weights, read as whole numbers, below `MODULUS`; a
    scalar float64 on their device. Changes with any flipped bit; equal on ranks that hold the same."""
    sums = [_bits(local_part(parameter.detach())) for parameter in module.parameters()]
    if not sums:
        return torch.zeros((), dtype=torch.float64)
    device = sums[0].device
    return (torch.stack([item.to(device) for item in sums]).sum() % MODULUS).double()


def odd_ranks(sums: Sequence[float], layout: Layout) -> tuple[int, ...]:
    """Ranks whose weights are not those of the ranks that should hold the same; of two that differ, both.

    Args:
        sums: `weights_sum` by rank.
    """
    holders: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in range(len(sums)):
        place = layout.place(rank)
        holders[place["pp"], place["dp_shard"], place["tp"]].append(rank)
    odd: list[int] = []
    for ranks in holders.values():
        by_sum: dict[float, list[int]] = defaultdict(list)
        for rank in ranks:
            by_sum[sums[rank]].append(rank)
        if len(by_sum) > 1:
            odd += _minority(by_sum)
    return tuple(sorted(odd))


def _minority(by_sum: Mapping[float, list[int]]) -> list[int]:
    most = max(len(ranks) for ranks in by_sum.values())
    largest = [ranks for ranks in by_sum.values() if len(ranks) == most]
    if len(largest) > 1:
        return [rank for ranks in by_sum.values() for rank in ranks]
    return [rank for ranks in by_sum.values() if ranks is not largest[0] for rank in ranks]


def _bits(tensor: Tensor) -> Tensor:
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(kind).sum(dtype=torch.int64)


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        state = numbers + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))
