"""A training that went to pieces is told from one that went well, or only up and down."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_run import Simulation

from drivetrain.report.divergence import divergence
from drivetrain.report.state import RunState
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import StepEvent


def run(
    loss: Callable[[int], float],
    *,
    steps: int = 200,
    start_step: int = 0,
    held_out: Mapping[int, float] | None = None,
) -> RunState:
    held_out = held_out or {}
    simulation = Simulation(
        run_dir=RunDir(Path("run")),
        world_size=1,
        total_steps=steps,
        start_step=start_step,
        losses=loss,
        metrics=lambda step: {"accuracy": 0.5, "loss": held_out.get(step, 1.0)},
        eval_every=50,
    )
    state = RunState()
    state.apply(simulation.header(0))
    for event in simulation.rank_events(0):
        state.apply(replace(event, rank=0))
    return state


NOISE = [random.Random(7).uniform(0.3, 1.7) for _ in range(10_000)]


@pytest.mark.parametrize(
    "loss",
    [
        lambda step: 2.3 / step,
        lambda step: 2.3 * NOISE[step],
        lambda step: 2.3 * NOISE[step] * 0.97**step,
        lambda step: 2.3 if step < 5 else 9.0 if step < 40 else 0.5,
        lambda step: -1.0 - 0.01 * step,
        lambda step: 1e-4 * NOISE[step] if step > 20 else 2.3,
    ],
    ids=["falls", "learns nothing", "noisy", "a spike in the warm-up", "below zero", "overfits"],
)
def test_a_sound_run_is_not_called_diverged(loss: Callable[[int], float]) -> None:
    assert divergence(run(loss)) == []


def test_a_resumed_run_of_few_noisy_steps_is_not_called_diverged() -> None:
    assert divergence(run(lambda step: 0.1 * NOISE[step], steps=120, start_step=100)) == []


def test_a_loss_that_ends_far_above_its_start_grew_from_there() -> None:
    state = run(lambda step: min(2.3 * 1.2**step, 1e6))
    (sentence,) = divergence(state)
    assert sentence == "the training loss grew from 2.76 at step 1 to 9.99e+05 at step 200"


def test_a_loss_that_loses_most_of_what_was_learnt_grew_from_its_lowest() -> None:
    (sentence,) = divergence(run(lambda step: 2.3 * 0.97**step if step < 100 else 2.1))
    assert sentence.startswith("the training loss grew from 0.2")
    assert sentence.endswith(" to 2.09 at step 200")


def test_a_loss_that_rises_and_comes_back_to_its_start_is_told() -> None:
    told = divergence(run(lambda step: 80.0 if 5 < step < 60 else 2.3))
    assert len(told) == 1
    assert "grew from 2.3 at step 1 to 78.84 at step 59 and ended at 2.353, about where it began" in told[0]


def test_a_resumed_run_that_blows_up_grew_from_where_it_began() -> None:
    (sentence,) = divergence(run(lambda step: 0.2 if step < 120 else 40.0, start_step=100))
    assert sentence.startswith("the training loss grew from 0.2 at step 110 to ")


def test_a_loss_that_is_no_number_is_named() -> None:
    assert divergence(run(lambda step: math.nan if step > 190 else 1.0)) == [
        "the training loss became nan at step 200"
    ]


def test_the_held_out_loss_alone_tells_when_it_is_many_times_its_lowest() -> None:
    assert divergence(run(lambda step: 1.0 / step, held_out={50: 0.2, 200: 7e7})) == [
        "the held-out loss grew from 0.2 at step 50 to 7e+07 at step 200"
    ]
    overfitted = run(lambda step: 1.0 / step, held_out={50: 0.2, 100: 0.3, 150: 0.5, 200: 0.9})
    assert divergence(overfitted) == []


def test_the_losses_are_the_trainings_own() -> None:
    state = run(lambda step: 1.0)
    state.apply(StepEvent(rank=1, step=201, position=1, num_samples=1, loss=1e9))
    assert divergence(state) == []
