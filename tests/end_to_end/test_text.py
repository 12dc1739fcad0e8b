"""A language model as a user trains it: from text, or from what every machine has."""

from pathlib import Path

import pytest

from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import EvalEvent, RunStarted, StepEvent
from drivetrain.telemetry.reader import read_events

# All 256 bytes alike: ln 256. A little less is seen, as an untrained tied model expects what just was, and
# spaces come in rows.
UNTRAINED = 5.55


def events_of(run: Path, kind):
    return [event for event in read_events(RunDir(run).rank_events(0)) if isinstance(event, kind)]


def test_own_text_is_prepared_then_trained_on(shell, tmp_path):
    source = Path(__file__).parent
    done = shell("drivetrain", "data", "prepare", "--text", source, "--glob", "*.py", "-o", "my.tokens")
    assert done.code == 0, done.err
    options = ("--data.path", "my.tokens", "--max-steps", 16, "--nproc-per-node", 1, "--output", "run")
    done = shell("drivetrain", "train", "gpt", "--schedule.warmup-steps", 4, *options)
    assert done.code == 0, done.err
    assert "tok/s" in done.err
    assert "perplexity" in done.out
    run = tmp_path / "run"
    assert events_of(run, RunStarted)[0].tokens_per_sample == 128
    losses = [event.loss for event in events_of(run, StepEvent)]
    assert losses[0] == pytest.approx(UNTRAINED, abs=0.5)
    assert losses[-1] < losses[0] - 1


@pytest.mark.slow
def test_the_recipe_learns_pythons_own_source_in_a_minute(shell, tmp_path):
    cache = str(tmp_path / "cache")
    done = shell("drivetrain", "train", "gpt", "--output", "run", timeout_s=240, XDG_CACHE_HOME=cache)
    assert done.code == 0, done.err
    run = tmp_path / "run"
    assert events_of(run, StepEvent)[0].loss == pytest.approx(UNTRAINED, abs=0.5)
    (metrics,) = [event.metrics for event in events_of(run, EvalEvent)]
    assert metrics["loss"] < 2.5
    assert (tmp_path / "cache" / "drivetrain").is_dir()
