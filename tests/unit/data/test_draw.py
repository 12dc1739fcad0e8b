"""Random numbers that belong to a sample."""

from __future__ import annotations

import contextlib
import random
import time

import numpy as np
import torch

from drivetrain.data.draw import restored_globals, sample_generator, seeded_globals


def _three() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_samples_numbers_depend_on_seed_epoch_and_index_alone() -> None:
    numbers = sample_generator(1, 2, 3).random(4)
    sample_generator(9, 9, 9).random(100)
    assert np.array_equal(sample_generator(1, 2, 3).random(4), numbers)
    for other in ((0, 2, 3), (1, 3, 3), (1, 2, 4), (1, 3, 2)):
        assert not np.array_equal(sample_generator(*other).random(4), numbers)


def test_the_raw_numbers_are_fixed_for_ever() -> None:
    # They must outlive numpy versions: the same checkpoint resumes with the same augmentation.
    assert sample_generator(0, 0, 0).bit_generator.random_raw(2).tolist() == [
        4845925033949274121,
        1174974137056826640,
    ]
    assert sample_generator(2**70, 5, 10**9).bit_generator.random_raw(2).tolist() == [
        7805353482113983890,
        17577491025849209510,
    ]


def test_numbers_of_neighbouring_samples_are_uniform_and_unrelated() -> None:
    firsts = np.array([sample_generator(7, 0, index).random(2) for index in range(20_000)])
    counts = np.histogram(firsts[:, 0], bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 60  # 19 degrees of freedom, beyond the 1e-5 quantile
    assert abs(np.corrcoef(firsts[1:, 0], firsts[:-1, 0])[0, 1]) < 0.04
    assert abs(np.corrcoef(firsts[:, 0], firsts[:, 1])[0, 1]) < 0.04


def test_a_generator_is_cheap() -> None:
    sample_generator(1, 1, 1)
    started = time.perf_counter()
    for index in range(1000):
        sample_generator(1, 1, index)
    assert (time.perf_counter() - started) / 1000 < 200e-6  # 3 µs alone; the bound allows a loaded machine


def test_global_generators_are_seeded_per_sample() -> None:
    with seeded_globals(1, 0, 5):
        first = _three()
    random.random()
    with seeded_globals(1, 0, 5):
        assert _three() == first
    with seeded_globals(1, 0, 6):
        assert all(ours != theirs for ours, theirs in zip(_three(), first, strict=True))


def test_the_training_process_keeps_its_own_random_numbers() -> None:
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    expected = _three()
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    with contextlib.suppress(KeyError), seeded_globals(1, 2, 3):
        _three()
        raise KeyError
    with restored_globals(), seeded_globals(1, 2, 4, restore=False):
        _three()
    assert _three() == expected


def test_a_worker_may_leave_them_seeded() -> None:
    with restored_globals():
        with seeded_globals(1, 2, 3, restore=False):
            inside = _three()
        after = _three()
        with seeded_globals(1, 2, 3, restore=False):
            assert _three() == inside
            assert _three() == after
