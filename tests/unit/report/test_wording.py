"""Numbers read as a person would say them."""

from __future__ import annotations

import math

import pytest

from drivetrain.report import wording


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "0.2 s"),
        (9.94, "9.9 s"),
        (59.6, "1:00"),
        (723, "12:03"),
        (11100, "3:05:00"),
        (183900, "2 d 03:05"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


def test_a_duration_that_is_not_known_says_so() -> None:
    assert wording.duration(math.nan) == "unknown"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0004123, "0.412 ms"),
        (0.0521, "52.1 ms"),
        (0.9996, "1 s"),
        (5.28, "5.28 s"),
        (99.94, "99.9 s"),
        (125, "2:05"),
    ],
)
def test_a_steps_time_is_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert wording.short_time(seconds) == text


@pytest.mark.parametrize(("part", "text"), [(0.0, "0 %"), (0.001, "<1 %"), (0.126, "13 %"), (1.0, "100 %")])
def test_shares_never_round_something_to_nothing(part: float, text: str) -> None:
    assert wording.share(part) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("eval/accuracy", 0.97531, "accuracy 97.53 %"),
        ("loss", 0.123456, "loss 0.1235"),
        ("accuracy", math.nan, "accuracy nan"),
    ],
)
def test_metrics(name: str, value: float, text: str) -> None:
    assert wording.metric(name, value) == text


def test_the_main_metric_is_an_accuracy_where_there_is_one() -> None:
    assert wording.main_metric(["loss", "eval/top1", "f1"]) == "eval/top1"
    assert wording.main_metric(["f1", "loss"]) == "f1"
    assert wording.main_metric([]) is None
    assert wording.lower_is_better("eval/loss")
    assert not wording.lower_is_better("accuracy")


def test_rank_ranges() -> None:
    assert wording.rank_ranges([3, 0, 1, 2, 8]) == "0–3, 8"
    assert wording.rank_ranges([5]) == "5"


def test_text_for_terminals_without_utf8_is_spelled_in_ascii() -> None:
    text = "micro-batch 4 × 1 → 7 · 平 \udcff"
    assert wording.printable(text, "ascii") == "micro-batch 4 x 1 -> 7 | ? ?"
    assert wording.printable(text, "utf-8") == "micro-batch 4 × 1 → 7 · 平 ?"


def test_a_rate_of_sequences_is_also_one_of_tokens() -> None:
    assert wording.speed(812.4, "img") == "812 img/s"
    assert wording.speed(81.25, "seq", 128) == "81.2 seq/s, 10,400 tok/s"
