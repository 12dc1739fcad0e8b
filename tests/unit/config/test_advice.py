"""What is said about values that are valid but hardly meant; see test_load for the learning rate."""

from __future__ import annotations

from drivetrain.config.advice import warm_up


def test_a_warm_up_as_long_as_the_run_is_remarked_on():
    assert list(warm_up(9, 10)) == []
    assert list(warm_up(0, 0)) == []
    (note,) = warm_up(10, 10)
    assert "the warm-up takes 10 steps and the run has 10" in note
