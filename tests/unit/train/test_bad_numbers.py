"""Leaps of the loss told from its noise; steps skipped one after the other."""

import random

import pytest

from drivetrain.engine.control import ClusterWord
from drivetrain.train.bad_numbers import MOST_SKIPS, SkippedSteps, SpikeWatch


def word(step, loss, sums=(1.0, 1.0)):
    return ClusterWord(
        step=step,
        loss=loss,
        grad_norm=None,
        loss_sums=sums,
        num_samples=(4, 4),
        samples=0,
        weights_sums=None,
        step_s=(0.1, 0.1),
        data_wait_s=(0.0, 0.0),
        save=False,
        stop=0,
        save_failed=False,
    )


def watch_after(losses):
    watch = SpikeWatch()
    for step, loss in enumerate(losses):
        assert watch.add(word(step, loss)) is None
    return watch


def noisy(mean, count, spread=0.1, seed=0):
    generator = random.Random(seed)
    return [mean * (1 + generator.gauss(0.0, spread)) for _ in range(count)]


def test_a_leap_is_told_once_with_step_and_rank():
    watch = watch_after(noisy(2.0, 40))
    spike = watch.add(word(40, 9.0, sums=(1.0, 1.0, 30.0)))
    assert spike is not None
    assert (spike.step, spike.rank) == (41, 2)
    assert "leapt to 9 at step 41" in spike.describe()


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.15])
def test_noise_and_slow_change_are_no_leaps(spread):
    falling = [5.0 * 0.99**step * factor for step, factor in enumerate(noisy(1.0, 400, spread, seed=3))]
    watch_after(falling)
    watch_after(reversed(falling))


def test_a_start_is_not_judged():
    watch_after([2.3, 50.0, 1.0, 9.0, 2.0])


def test_ten_skipped_steps_in_a_row_are_too_many():
    skipped = SkippedSteps()
    assert not any(skipped.add(True) for _ in range(MOST_SKIPS - 1))
    assert not skipped.add(False)
    assert [skipped.add(True) for _ in range(MOST_SKIPS)][-1]
