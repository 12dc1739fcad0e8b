"""The keyed permutation: a bijection at any size, well mixed, with nothing stored."""

from __future__ import annotations

import collections
import math
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.data.permutation import MAX_SIZE, KeyedPermutation


@pytest.mark.parametrize("sizes", [range(1, 200), (255, 256, 257, 1023, 1024, 1025, 4095, 4096, 65_537)])
def test_is_a_bijection_and_inverse_undoes_it(sizes: range | tuple[int, ...]) -> None:
    for size in sizes:
        permutation, places = KeyedPermutation(size, (size, 3)), np.arange(size)
        elements = permutation(places)
        assert np.array_equal(np.sort(elements), places), size
        assert np.array_equal(permutation.inverse(elements), places), size


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(1, 2**45),
    key=st.tuples(st.integers(-(2**70), 2**70), st.integers(0, 10)),
    fractions=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20),
)
def test_any_size_and_key_can_be_inverted(size: int, key: tuple[int, int], fractions: list[float]) -> None:
    places = np.array([int(fraction * size) for fraction in fractions])
    permutation = KeyedPermutation(size, key)
    elements = permutation(places)
    assert elements.min() >= 0
    assert elements.max() < size
    assert np.array_equal(permutation.inverse(elements), places)


@pytest.mark.parametrize("size", [10**8, 2**40 + 7, MAX_SIZE])
def test_no_element_comes_twice_in_large_sizes(size: int) -> None:
    permutation = KeyedPermutation(size, (1, 2))
    places = np.concatenate([np.arange(50_000), np.arange(size - 50_000, size)])
    elements = permutation(places)
    assert len(np.unique(elements)) == len(places)
    assert np.array_equal(permutation.inverse(elements), places)
    # Each tenth of the range gets its tenth: chi-square with 9 degrees of freedom, 1e-6 quantile.
    counts = np.bincount(elements // (size // 10 + 1), minlength=10)
    assert ((counts - 1e4) ** 2 / 1e4).sum() < 47.0


@pytest.mark.parametrize("size", [3, 4, 5])
def test_over_keys_all_orders_of_a_small_set_are_equally_frequent(size: int) -> None:
    num_orders = math.factorial(size)
    num_keys = max(2_000, 20 * num_orders)
    seen = collections.Counter(
        tuple(KeyedPermutation(size, (7, key))(np.arange(size)).tolist()) for key in range(num_keys)
    )
    expected = num_keys / num_orders
    chi_square = sum((count - expected) ** 2 / expected for count in seen.values())
    chi_square += (num_orders - len(seen)) * expected
    freedom = num_orders - 1
    assert (chi_square - freedom) / math.sqrt(2 * freedom) < 5.0


def test_neighbours_in_place_are_not_neighbours_in_value() -> None:
    size = 1_000_000
    elements = KeyedPermutation(size, (0, 0))(np.arange(size)).astype(np.float64)
    # Standard error of a correlation of 10⁶ independent pairs: 0.001.
    assert abs(np.corrcoef(np.arange(size), elements)[0, 1]) < 0.005
    assert abs(np.corrcoef(elements[1:], elements[:-1])[0, 1]) < 0.005
    assert abs(np.corrcoef(elements[997:], elements[:-997])[0, 1]) < 0.005


def test_another_epoch_is_another_unrelated_order() -> None:
    first, second = (KeyedPermutation(100_000, (5, epoch))(np.arange(100_000)) for epoch in (0, 1))
    assert (first == second).sum() < 12  # Poisson with mean 1
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02


def test_the_order_of_a_key_is_fixed_for_ever() -> None:
    # A checkpoint holds a position, not an order: a change here would break every resumed run.
    assert KeyedPermutation(10, (0, 0))(np.arange(10)).tolist() == [7, 5, 8, 9, 6, 0, 1, 4, 3, 2]
    assert KeyedPermutation(10**8, (17, 3))(np.array([0, 1, 99_999_999])).tolist() == [
        65708719,
        75820444,
        35549481,
    ]


def test_seek_time_and_memory_do_not_depend_on_the_size() -> None:
    def cost(size: int) -> tuple[float, int]:
        last = np.arange(size - 256, size)
        best = math.inf
        tracemalloc.start()
        for _ in range(20):
            started = time.perf_counter()
            KeyedPermutation(size, (1, 1))(last)
            best = min(best, time.perf_counter() - started)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return best, peak

    cost(10_000)
    small_s, small_bytes = cost(10_000)
    large_s, large_bytes = cost(10**8)
    assert large_bytes < 1.5 * small_bytes + 4096
    assert large_bytes < 100_000
    assert large_s < 5 * small_s
    assert large_s < 0.05


def test_places_outside_are_refused() -> None:
    permutation = KeyedPermutation(10, (1,))
    for wrong in (-1, 10):
        with pytest.raises(ValueError, match="of 10 elements"):
            permutation(np.array([0, wrong]))
    with pytest.raises(ValueError, match="size must be"):
        KeyedPermutation(0, (1,))


def test_shape_is_kept_and_nothing_gives_nothing() -> None:
    permutation = KeyedPermutation(100, (1,))
    assert permutation(np.arange(6).reshape(2, 3)).shape == (2, 3)
    assert permutation(np.array([], dtype=np.int64)).shape == (0,)
