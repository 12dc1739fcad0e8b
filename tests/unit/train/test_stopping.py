"""When a run asks to stop: signals noted once, and the job's time limit."""

import signal
import time

import pytest

from drivetrain.train import interruption
from drivetrain.train.time_limit import TimeLimit, deadline_of


@pytest.fixture
def noted():
    yield interruption.listen()
    interruption.stop_listening()


def test_the_first_signal_counts_and_the_process_lives(noted):
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGTERM)
    assert noted.code == signal.SIGUSR1
    assert interruption.describe(noted.code) == "SIGUSR1"


def test_a_second_interrupt_ends_at_once(noted):
    signal.raise_signal(signal.SIGINT)
    assert noted.code == signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_handler_of_the_users_own_stays():
    seen = []
    before = signal.signal(signal.SIGUSR2, lambda number, _frame: seen.append(number))
    try:
        code = interruption.listen()
        signal.raise_signal(signal.SIGUSR2)
        assert (seen, code.code) == ([signal.SIGUSR2], 0)
    finally:
        interruption.stop_listening()
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize(
    ("environ", "deadline"),
    [
        ({}, None),
        ({"SLURM_JOB_END_TIME": "2000"}, 2000.0),
        ({"SLURM_JOB_END_TIME": "2000", "DRIVETRAIN_DEADLINE": "1500.5"}, 1500.5),
        ({"SLURM_JOB_END_TIME": "UNLIMITED"}, None),
    ],
)
def test_the_earliest_limit_that_is_a_number_holds(environ, deadline):
    assert deadline_of(environ) == deadline


def test_longer_saves_and_steps_are_begun_earlier():
    limit = TimeLimit(time.time() + 1000)
    assert not limit.is_near(float("nan"))
    limit.saved(500.0)
    assert not limit.is_near(10.0)
    assert limit.is_near(60.0)
    limit.saved(660.0)
    assert limit.is_near(float("nan"))
