"""Events survive the way to text and back; what is not an event is told apart."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.spec.parts import StepPart
from drivetrain.telemetry.events import (
    EVENT_TYPES,
    CheckpointEvent,
    ClusterStep,
    EvalEvent,
    Event,
    Header,
    MessageEvent,
    RunEnded,
    RunStarted,
    SkippedSampleEvent,
    StepEvent,
)
from drivetrain.telemetry.json_lines import from_line, to_line

STAMPS = {"rank": 3, "mono_s": 12.5, "wall_s": 1.7e9}
ONE_OF_EACH: list[Event] = [
    Header(**STAMPS, world_size=4, local_rank=1, host="node7", pid=42, started_wall_s=1.7e9, restart=2),
    RunStarted(
        **STAMPS,
        name="digits",
        strategy="ddp",
        devices=("cpu", "cpu"),
        precision="bf16",
        total_steps=100,
        num_samples=1797,
        global_batch=7,
        accumulation=2,
        micro_batch=2,
        world_size=2,
        shares=(4, 3),
        batch="micro-batch 2 × 2",
        loader="2 workers",
        notes=("precision auto → bf16",),
        start_step=10,
        sample_unit="img",
    ),
    StepEvent(
        **STAMPS,
        step=11,
        position=77,
        num_samples=4,
        loss=0.25,
        lr=0.1,
        grad_norm=None,
        parts={StepPart.FORWARD: 0.5, StepPart.HOST: 0.25},
        step_s=0.75,
        num_skipped=1,
        host_data_wait_s=0.125,
    ),
    ClusterStep(**STAMPS, step=9, samples=(4, None), step_s=(0.5, None), data_wait_s=(0.0, None), loss=1.0),
    EvalEvent(**STAMPS, step=10, epoch=0.5, num_samples=360, metrics={"accuracy": 0.97}, seconds=1.5),
    CheckpointEvent(**STAMPS, step=10, path="checkpoints/step-00000010", seconds=0.5, bytes=1000),
    SkippedSampleEvent(**STAMPS, source="a\udcff.jpg", reason="truncated", step=3),
    MessageEvent(**STAMPS, level="warning", text="NaN"),
    RunEnded(**STAMPS, status="failed", reason="loss became NaN", step=11, seconds=9.5),
]


def test_there_is_an_example_of_every_kind() -> None:
    assert {type(event) for event in ONE_OF_EACH} == set(EVENT_TYPES.values())


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.kind)
def test_every_kind_survives_the_round_trip(event: Event) -> None:
    line = to_line(event, **STAMPS)
    assert line.startswith(f'{{"kind":"{event.kind}",')
    assert line.endswith("}\n")
    assert line.count("\n") == 1
    assert from_line(line) == event


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_numbers_survive_in_strict_json(value: float) -> None:
    event = EvalEvent(**STAMPS, step=1, epoch=value, num_samples=1, metrics={"loss": value}, seconds=1.0)
    line = to_line(event, **STAMPS)

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    json.loads(line, parse_constant=refuse)
    back = from_line(line)
    assert isinstance(back, EvalEvent)
    assert repr(back.epoch) == repr(value)
    assert repr(back.metrics["loss"]) == repr(value)


@given(st.floats(), st.text(), st.integers())
def test_any_float_text_and_integer_survive(number: float, text: str, integer: int) -> None:
    event = SkippedSampleEvent(**STAMPS, source=text, reason="x", step=integer)
    assert from_line(to_line(event, **STAMPS)) == event
    step = StepEvent(**STAMPS, step=1, position=1, num_samples=1, loss=number)
    back = from_line(to_line(step, **STAMPS))
    assert isinstance(back, StepEvent)
    assert repr(back.loss) == repr(number)


def test_unknown_fields_parts_and_kinds_of_a_later_schema_are_ignored() -> None:
    raw = json.loads(to_line(ONE_OF_EACH[2], **STAMPS))
    raw["colour"] = "blue"
    raw["parts"]["teleport"] = 1.0
    assert from_line(json.dumps(raw)) == ONE_OF_EACH[2]
    assert from_line('{"kind": "from_the_future", "x": 1}') is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        '{"kind":"step","step":1',
        "[]",
        '{"kind":"step","step":1}',
        '{"kind":"message","level":"info","text":7}',
        '{"kind":"step","step":true,"position":1,"num_samples":1}',
        '{"kind":"step","step":1,"position":1,"num_samples":1,"loss":"high"}',
    ],
)
def test_what_is_no_whole_event_is_a_value_error(line: str) -> None:
    with pytest.raises(ValueError):
        from_line(line)


def test_a_value_that_is_not_plain_is_refused_with_its_field() -> None:
    event = StepEvent(step=1, position=1, num_samples=1, loss=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"StepEvent\.loss: object is no plain value"):
        to_line(event, **STAMPS)
