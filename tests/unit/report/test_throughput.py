"""Rates leave out what is not steady training, and say None for what nobody measured."""

from __future__ import annotations

import pytest

from drivetrain.report.throughput import PartSums, RankStep, Throughput
from drivetrain.spec.parts import StepPart


def seen(step_s: float | None, wait_s: float | None = 0.0, samples: int | None = 4) -> RankStep:
    return RankStep(samples=samples, step_s=step_s, data_wait_s=wait_s)


def test_the_first_steps_and_pauses_do_not_count() -> None:
    throughput = Throughput(num_ranks=1)
    for step in range(1, 21):
        slow = step <= 3 or step in (10, 11)
        throughput.add(0, step, seen(100.0 if slow else 0.5, wait_s=0.05))
    throughput.pause_at(10, counts_in_step=True)
    for rates in (throughput.window(), throughput.whole()):
        assert rates.samples_per_s == pytest.approx(8.0)
        assert rates.seconds_per_step == pytest.approx(0.5)
        assert rates.data_wait_share == pytest.approx(0.1)
        assert rates.num_steps == 15


def test_the_total_is_the_sum_over_ranks_and_the_slowest_sets_the_step() -> None:
    throughput = Throughput(num_ranks=2)
    for step in range(1, 11):
        throughput.add(0, step, seen(0.5, wait_s=0.25, samples=4))
        throughput.add(1, step, seen(0.6, wait_s=0.0, samples=3))
    rates = throughput.window()
    assert rates.per_rank[0].samples_per_s == pytest.approx(8.0)
    assert rates.per_rank[1].samples_per_s == pytest.approx(5.0)
    assert rates.samples_per_s == pytest.approx(13.0)
    assert rates.seconds_per_step == pytest.approx(0.6)
    assert rates.per_rank[0].data_wait_share == pytest.approx(0.5)
    assert rates.data_wait_share == pytest.approx(0.25 / 1.1)


def test_the_total_is_not_known_while_a_rank_is_not() -> None:
    throughput = Throughput(num_ranks=2)
    for step in range(1, 11):
        throughput.add(0, step, seen(0.5))
    assert throughput.window().samples_per_s is None
    for step in range(1, 11):
        throughput.add(1, step, seen(None, wait_s=None))
    rates = throughput.whole()
    assert rates.samples_per_s is None
    assert rates.per_rank[1].samples_per_s is None
    assert rates.per_rank[1].data_wait_share is None


def test_nothing_is_known_before_the_first_usual_step() -> None:
    throughput = Throughput(num_ranks=1, first_step=101)
    for step in (101, 102, 103):
        throughput.add(0, step, seen(9.0))
    rates = throughput.window()
    assert (rates.samples_per_s, rates.seconds_per_step, rates.data_wait_share) == (None, None, None)


def test_a_step_told_twice_counts_once() -> None:
    throughput = Throughput(num_ranks=1)
    for step in range(1, 301):
        for _ in range(2):
            throughput.add(0, step, seen(0.5))
    throughput.add(0, 5, seen(500.0))
    assert throughput.whole().num_steps == 297
    assert throughput.whole().samples_per_s == pytest.approx(8.0)


def test_the_window_forgets_and_the_whole_does_not() -> None:
    throughput = Throughput(num_ranks=1)
    for step in range(1, 1001):
        throughput.add(0, step, seen(1.0 if step <= 500 else 0.5))
    assert throughput.window().samples_per_s == pytest.approx(8.0)
    assert throughput.whole().samples_per_s == pytest.approx(4 * 997 / (497 * 1.0 + 500 * 0.5))


def test_where_every_step_has_a_pause_the_window_still_tells_a_rate() -> None:
    throughput = Throughput(num_ranks=1)
    for step in range(1, 11):
        throughput.add(0, step, seen(0.5))
        throughput.pause_at(step, counts_in_step=True)
    assert throughput.window().samples_per_s == pytest.approx(8.0)


def test_part_shares_sum_to_one_and_leave_out_the_first_steps() -> None:
    sums = PartSums()
    for step in range(1, 11):
        parts = {StepPart.FORWARD: 0.25, StepPart.BACKWARD: 0.75 if step > 3 else 99.0}
        sums.add(step, parts)
    assert sums.shares() == {StepPart.FORWARD: 0.25, StepPart.BACKWARD: 0.75}
    assert PartSums().shares() == {}
