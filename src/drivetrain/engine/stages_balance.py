"""A row of costs, cut into consecutive parts whose costliest costs least."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def balance(
    costs: Sequence[float], num_parts: int, *, before: float = 0.0, after: float = 0.0
) -> list[tuple[int, int]]:
    """(start, stop) of each part, none empty. Among cuts whose costliest part costs the least, the one whose
    costs are the most even (by their squares).

    Args:
        before, after: costs that the first and the last part have beside those of the row.
    """
    assert 1 <= num_parts <= len(costs)
    sums = [0.0, *accumulate(costs)]
    # best[stop]: the best cut of costs[:stop] into as many parts as done: (costliest, squares, its bounds).
    best: dict[int, tuple[float, float, list[tuple[int, int]]]] = {0: (0.0, 0.0, [])}
    for part in range(num_parts):
        extra = (before if part == 0 else 0.0) + (after if part == num_parts - 1 else 0.0)
        left = num_parts - part - 1
        following: dict[int, tuple[float, float, list[tuple[int, int]]]] = {}
        for start, (highest, squares, bounds) in best.items():
            stops = range(start + 1, len(costs) - left + 1) if left else (len(costs),)
            for stop in stops:
                cost = sums[stop] - sums[start] + extra
                found = (max(highest, cost), squares + cost * cost, [*bounds, (start, stop)])
                if stop not in following or found < following[stop]:
                    following[stop] = found
        best = following
    return best[len(costs)][2]
