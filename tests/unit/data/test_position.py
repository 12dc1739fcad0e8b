"""Positions and the stream of samples that spans epochs."""

from __future__ import annotations

import itertools
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.data.permutation import Int64, KeyedPermutation
from drivetrain.data.position import SampleOrder
from drivetrain.spec.errors import InputError


def test_each_epoch_holds_each_sample_once_in_another_order() -> None:
    slots = SampleOrder(37, seed=1).slots(0, 3 * 37)
    epochs = slots.index.reshape(3, 37)
    for row in epochs:
        assert np.array_equal(np.sort(row), np.arange(37))
    assert len({tuple(row.tolist()) for row in epochs}) == 3
    assert slots.epoch.tolist() == [0] * 37 + [1] * 37 + [2] * 37
    assert slots.position.tolist() == list(range(111))


@settings(max_examples=60, deadline=None)
@given(
    num_samples=st.integers(1, 50),
    seed=st.integers(0, 2**64),
    cuts=st.lists(st.integers(0, 400), min_size=2, max_size=6),
    shuffle=st.booleans(),
)
def test_however_the_stream_is_cut_the_samples_are_the_same(
    num_samples: int, seed: int, cuts: list[int], shuffle: bool
) -> None:
    order = SampleOrder(num_samples, seed, shuffle)
    cuts = sorted(cuts)
    whole = order.slots(cuts[0], cuts[-1])
    parts = [order.slots(start, stop) for start, stop in itertools.pairwise(cuts)]
    assert np.array_equal(whole.index, np.concatenate([part.index for part in parts]))
    assert np.array_equal(whole.epoch, np.concatenate([part.epoch for part in parts]))


def test_without_shuffling_the_order_is_the_data_sets_own() -> None:
    assert SampleOrder(3, seed=9, shuffle=False).slots(2, 8).index.tolist() == [2, 0, 1, 2, 0, 1]


def test_the_seed_chooses_the_order() -> None:
    first, second = (SampleOrder(1000, seed).slots(0, 1000).index for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_a_batch_may_hold_a_tiny_data_set_many_times() -> None:
    started = time.perf_counter()
    assert SampleOrder(1, seed=0).slots(10**9, 10**9 + 4096).index.tolist() == [0] * 4096
    assert np.bincount(SampleOrder(2, seed=0).slots(0, 1024).index).tolist() == [512, 512]
    assert time.perf_counter() - started < 5


def test_far_positions_are_reached_at_once() -> None:
    order = SampleOrder(10**8, seed=0)
    started = time.perf_counter()
    slots = order.slots(987 * 10**8 - 128, 987 * 10**8 + 128)
    assert time.perf_counter() - started < 0.1
    assert set(slots.epoch.tolist()) == {986, 987}


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(InputError, match="0 samples"):
        SampleOrder(0, seed=0)


def test_a_seek_costs_no_more_memory_nor_work_at_ten_to_the_eighth(monkeypatch: pytest.MonkeyPatch) -> None:
    permuted = []
    permute = KeyedPermutation.__call__

    def counting(self: KeyedPermutation, positions: Int64) -> Int64:
        permuted.append(len(positions))
        return permute(self, positions)

    monkeypatch.setattr(KeyedPermutation, "__call__", counting)
    peaks = []
    for num_samples in (10**3, 10**8, 10**12):
        start = 7 * num_samples - 100  # deep in the stream, and across an epoch's end
        SampleOrder(num_samples, seed=3).slots(start, start + 256)  # what is made once is made
        permuted.clear()
        tracemalloc.start()
        slots = SampleOrder(num_samples, seed=3).slots(start, start + 256)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert permuted == [100, 156]
        assert slots.epoch.tolist() == [6] * 100 + [7] * 156
        assert 0 <= slots.index.min() <= slots.index.max() < num_samples
    assert max(peaks) < 64 * 1024  # of 10**8 stored indices it would be 800 MB
    assert max(peaks) < 1.5 * min(peaks)
