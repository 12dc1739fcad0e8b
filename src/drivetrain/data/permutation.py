"""A keyed permutation of 0 … size-1 that is computed, not stored: O(1) memory and seek at any size."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
_Uint64 = NDArray[np.uint64]
_Step = Callable[[_Uint64], _Uint64]

# The limit of the reduction by multiply and shift below: both halves must stay under 2**32.
MAX_SIZE = 2**62

# Enough that all orders of 4 and 5 elements are equally frequent over keys (chi-square, in the tests);
# with large halves fewer rounds do.
_ROUNDS = 8
_ROUNDS_OF_SMALL = 16
_SMALL = 4096

# Odd constants of the SplitMix64 finaliser (Steele, Lea, Flood: Fast splittable pseudorandom number
# generators, OOPSLA 2014; Stafford's variant 13).
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_30, _SHIFT_27, _SHIFT_32 = np.uint64(30), np.uint64(27), np.uint64(32)


class KeyedPermutation:
    """A Feistel network over the integers below `size`.

    The halves are a digit in base a and a digit in base b with a·b just above `size` (a and b near its square
    root), rather than bits: a result outside is sent through again ("cycle-walking"), and with a·b ≥ size so
    tight that almost never happens, where powers of two would repeat up to half the work.

    Not for secrets: it mixes well enough for statistics, no more.

    Args:
        size: number of elements, 1 to 2**62.
        key: integers of any size; every different tuple is another permutation.
    """

    def __init__(self, size: int, key: tuple[int, ...]) -> None:
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"a permutation of {size} elements: the size must be 1 to 2**62")
        self.size = size
        self.key = key
        base_high = math.isqrt(size - 1) + 1
        base_low = -(-size // base_high)
        self._bases = (np.uint64(base_high), np.uint64(base_low))
        self._num_rounds = _ROUNDS_OF_SMALL if size < _SMALL else _ROUNDS
        text = ",".join(str(int(part)) for part in key)
        digest = hashlib.shake_128(b"drivetrain order " + text.encode()).digest(8 * self._num_rounds)
        self._round_keys = np.frombuffer(digest, dtype="<u8").astype(np.uint64)

    def __call__(self, positions: Int64) -> Int64:
        """The elements at `positions` (any shape, 0 ≤ position < size)."""
        return self._walk(positions, self._forward)

    def inverse(self, elements: Int64) -> Int64:
        """The positions at which `elements` stand: `inverse(self(p)) == p`."""
        return self._walk(elements, self._backward)

    def _walk(self, values: Int64, step: _Step) -> Int64:
        given = np.asarray(values)
        if given.size and (int(given.min()) < 0 or int(given.max()) >= self.size):
            raise ValueError(
                f"positions {given.min()} … {given.max()} of a permutation of {self.size} elements"
            )
        result = step(given.astype(np.uint64).reshape(-1))
        outside = np.flatnonzero(result >= self.size)
        while outside.size:
            result[outside] = step(result[outside])
            outside = outside[result[outside] >= self.size]
        return result.astype(np.int64).reshape(given.shape)

    def _forward(self, values: _Uint64) -> _Uint64:
        halves: list[_Uint64] = list(np.divmod(values, self._bases[1]))
        for index in range(self._num_rounds):
            changed, base = index % 2, self._bases[index % 2]
            total = halves[changed] + _mix(halves[1 - changed], self._round_keys[index], base)
            total -= base * (total >= base)
            halves[changed] = total
        return halves[0] * self._bases[1] + halves[1]

    def _backward(self, values: _Uint64) -> _Uint64:
        halves: list[_Uint64] = list(np.divmod(values, self._bases[1]))
        for index in reversed(range(self._num_rounds)):
            changed, base = index % 2, self._bases[index % 2]
            total = halves[changed] + base - _mix(halves[1 - changed], self._round_keys[index], base)
            total -= base * (total >= base)
            halves[changed] = total
        return halves[0] * self._bases[1] + halves[1]


def _mix(values: _Uint64, key: np.uint64, base: np.uint64) -> _Uint64:
    """A keyed hash of `values`, reduced to 0 … base-1 (base ≤ 2**32) by multiplying the upper half."""
    mixed = values ^ key
    mixed *= _MULTIPLY_1
    mixed ^= mixed >> _SHIFT_30
    mixed *= _MULTIPLY_2
    mixed ^= mixed >> _SHIFT_27
    mixed >>= _SHIFT_32
    mixed *= base
    mixed >>= _SHIFT_32
    return mixed
