"""The fold from events to what is known of a run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from simulated_run import Simulation

from drivetrain.report.loss import SmoothedLoss
from drivetrain.report.phrases import eval_text
from drivetrain.report.state import RunState
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import EvalEvent, Header, MessageEvent, RunStarted


def test_a_loss_is_smoothed_without_the_bias_of_its_start() -> None:
    loss = SmoothedLoss()
    assert loss.value is None
    for step in range(1, 4):
        loss.add(step, 2.0)
    assert loss.value == pytest.approx(2.0)
    loss.add(3, 1000.0)  # told before
    assert loss.value == pytest.approx(2.0)


def test_a_loss_that_is_not_a_number_is_shown_and_then_forgotten() -> None:
    loss = SmoothedLoss()
    loss.add(1, 2.0)
    loss.add(2, math.nan)
    assert loss.value is not None
    assert math.isnan(loss.value)
    loss.add(3, 2.0)
    assert loss.value == pytest.approx(2.0)


def evaluation(step: int, **metrics: float) -> EvalEvent:
    return EvalEvent(rank=0, step=step, epoch=1.0, num_samples=1, metrics=metrics, seconds=1.0)


def test_the_best_is_the_highest_accuracy_or_the_lowest_loss_and_the_earlier_of_equals() -> None:
    state = RunState()
    for step, accuracy in ((10, 0.5), (20, 0.9), (30, 0.9), (40, math.nan)):
        state.apply(evaluation(step, accuracy=accuracy, loss=1.0))
    assert state.best is not None
    assert (state.best.step, state.best.value) == (20, 0.9)
    state = RunState()
    for step, loss in ((10, 0.5), (20, 0.2), (30, math.nan)):
        state.apply(evaluation(step, loss=loss))
    assert state.best is not None
    assert (state.best.name, state.best.step, state.best.value) == ("loss", 20, 0.2)


def test_an_equal_value_is_not_a_new_best() -> None:
    state = RunState()
    state.apply(evaluation(90, accuracy=0.9889, loss=0.1))
    state.apply(evaluation(180, accuracy=0.9889, loss=0.2))
    text = "accuracy 98.89 %, loss 0.2 (best accuracy 98.89 % at step 90)"
    assert eval_text(state) == f"eval after step 180: {text}"
    state.apply(evaluation(270, accuracy=0.99, loss=0.2))
    assert eval_text(state).endswith("loss 0.2, the best so far")


def started(start_step: int) -> RunStarted:
    simulation = Simulation(run_dir=RunDir(Path("run")), start_step=start_step)
    return RunStarted(**{**vars(simulation.started()), "rank": 0})


def test_a_resume_forgets_evaluations_of_steps_that_are_done_again() -> None:
    state = RunState()
    state.apply(Header(rank=0, world_size=2, local_rank=0, host="h", pid=1, started_wall_s=0.0))
    state.apply(started(0))
    for step, accuracy in ((10, 0.5), (20, 0.6), (30, 0.99)):
        state.apply(evaluation(step, accuracy=accuracy))
    state.apply(started(20))
    assert [item.step for item in state.evals] == [10, 20]
    assert state.step == 20
    assert state.best is not None
    assert state.best.value == 0.6


def test_messages_are_bounded_and_the_rest_is_counted() -> None:
    state = RunState()
    for number in range(1000):
        state.apply(MessageEvent(rank=0, level="info", text=str(number)))
    taken = state.take_messages()
    assert len(taken) == 201
    assert taken[-1].text.startswith("800 more messages")
    assert state.take_messages() == []
