"""Who was heard of least recently when a run stands still."""

from __future__ import annotations

from drivetrain.report.last_words import LastWords
from drivetrain.telemetry.events import Event, Header, MessageEvent, StepEvent


def step(rank: int, number: int, wall_s: float) -> Event:
    return StepEvent(rank=rank, step=number, position=0, num_samples=1, wall_s=wall_s)


def header(rank: int) -> Event:
    return Header(
        rank=rank, world_size=3, local_rank=rank, host="h", pid=1, started_wall_s=0.0, wall_s=0.1 * rank
    )


def words(*events: Event) -> LastWords:
    found = LastWords()
    for event in (header(0), header(1), header(2), *events):
        found.add(event)
    return found


def test_a_rank_that_is_steps_behind_is_the_oldest_whatever_its_clock_says() -> None:
    found = words(step(0, 58, 10.0), step(1, 57, 99.0), step(2, 58, 10.0))
    assert list(found.oldest()) == [1]
    assert found.oldest()[1].step == 57


def test_at_the_same_step_the_one_that_fell_silent_first_is_the_oldest() -> None:
    assert list(words(step(0, 58, 10.0), step(1, 58, 9.1), step(2, 58, 10.1)).oldest()) == [1]


def test_ranks_that_fell_silent_together_are_not_told_apart() -> None:
    assert words(step(0, 58, 10.0), step(1, 58, 10.1), step(2, 58, 10.05)).oldest() == {}
    assert words().oldest() == {}
    assert LastWords().oldest() == {}


def test_what_only_rank_0_writes_does_not_count() -> None:
    found = words(MessageEvent(rank=0, level="info", text="evaluated", wall_s=500.0))
    assert found.oldest() == {}
