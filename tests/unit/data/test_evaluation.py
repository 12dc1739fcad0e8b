"""Evaluation: each sample once over all ranks."""

from __future__ import annotations

import itertools

import pytest
import torch

from drivetrain.data.evaluation import EvalLoader
from drivetrain.data.workers import LoaderPlan
from drivetrain.spec.errors import BadSampleError


class Numbers:
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 1000:
            raise OSError("gone")
        return torch.tensor([float(index)]), index


@pytest.mark.parametrize("length", [1, 2, 7, 30, 31])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("batch", [1, 4, 50])
def test_each_sample_comes_once_and_all_ranks_run_equally_often(
    length: int, num_ranks: int, batch: int
) -> None:
    loaders = [
        EvalLoader(Numbers(length), batch=batch, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)
    ]
    passes = [list(loader) for loader in loaders]
    assert {len(micros) for micros in passes} == {len(loaders[0])}
    micros = [micro for each in passes for micro in each]
    valid = [sample for micro in micros for sample in micro.ids[micro.weight > 0].tolist()]
    assert sorted(valid) == list(range(length))
    assert sum(micro.num_valid for micro in micros) == length
    assert all(1 <= micro.size <= batch for micro in micros)
    for micro in micros:
        assert torch.equal(micro.y[micro.weight > 0], micro.ids[micro.weight > 0])


def test_a_second_pass_is_the_same_with_workers_too() -> None:
    plan = LoaderPlan(workers=1, timeout_s=30)
    loader = EvalLoader(
        Numbers(20), batch=3, loader=plan, render=lambda sample, params: (sample[0] + 1, sample[1])
    )
    first, second = ([micro.x.flatten().tolist() for micro in loader] for _ in range(2))
    assert first == second
    assert list(itertools.chain.from_iterable(first)) == [float(value) for value in range(1, 21)]
    assert [index for micro in loader.device_batches() for index in micro.ids.tolist()] == list(range(20))


def test_a_bad_sample_is_named() -> None:
    with pytest.raises(BadSampleError, match="sample 1000 of Numbers: gone"):
        list(EvalLoader(Numbers(1001), batch=100))
    micros = list(EvalLoader(Numbers(1001), batch=100, on_bad_sample="skip"))
    assert micros[-1].num_valid == 0.0
    assert micros[-1].skipped[0].source == "sample 1000 of Numbers"
