"""The run directory as its last start left it: what is read of the events, and whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from drivetrain.report.state import RunState
from drivetrain.spec.exit_codes import ExitCode
from drivetrain.spec.outcome import Outcome
from drivetrain.spec.run_dir import RunDir, step_of_checkpoint
from drivetrain.telemetry.events import Event, Header, SkippedSampleEvent
from drivetrain.telemetry.reader import read_events

# Of a long run only the last steps are read, about 70,000 of them in 4 s; the rest of its events in full.
_MOST_STEP_BYTES: Final = 16 << 20
# How far the clocks of two machines may be apart.
_CLOCK_SKEW_S: Final = 60.0


def read_state(run_dir: RunDir) -> RunState:
    """Rank 0 tells for all, but each rank names its own bad samples."""
    state = RunState()
    paths = sorted(run_dir.events.glob("rank-*.jsonl"))
    for path in paths[:1]:
        for event in read_events(path, steps_from_byte=path.stat().st_size - _MOST_STEP_BYTES):
            state.apply(event)
    for path in paths[1:]:
        if state.cluster_is_seen:
            events: Iterator[Event] = read_events(path, kinds={Header, SkippedSampleEvent})
        else:
            events = _without_earlier_steps(path)
        for event in events:
            state.apply(event)
    return state


def _without_earlier_steps(path: Path) -> Iterator[Event]:
    """A rank's bad samples, and of the rest what it wrote since its last start."""
    num_starts = sum(1 for _ in read_events(path, kinds={Header}))
    for event in read_events(path):
        num_starts -= isinstance(event, Header)
        if num_starts == 0 or isinstance(event, SkippedSampleEvent):
            yield event


def belongs_to(state: RunState, outcome: Outcome | None) -> bool:
    """Whether the last start that wrote events is the one that ended with `outcome`: a start that fails early
    (an import, a port) writes none.
    """
    header = state.headers.get(state.lead_rank)
    if header is None:
        return False
    if outcome is None:
        return True
    local = next((rank for rank in outcome.ranks if rank.rank == header.rank), None)
    skew_s = 0.0 if local is not None and local.host == header.host else _CLOCK_SKEW_S
    return header.started_wall_s >= outcome.started_wall_s - skew_s


def status_of(state: RunState, outcome: Outcome | None, *, is_own: bool) -> str:
    """done, stopped, interrupted, failed or "not known"; `is_own`: the events are this start's."""
    if outcome is not None and outcome.exit_code == ExitCode.PREEMPTED:
        return "stopped"
    if outcome is not None and outcome.exit_code != ExitCode.DONE:
        return "interrupted" if _was_interrupted(outcome) else "failed"
    if is_own and state.end_status is not None:
        return state.end_status
    return "done" if outcome is not None else "not known"


def _was_interrupted(outcome: Outcome) -> bool:
    """By a signal to a launcher, here or on another machine, which tells it as its ranks' failure."""
    first = outcome.earliest_failure
    told = first.message if first is not None else outcome.error
    return told is not None and "launcher" in told and "was interrupted by" in told


def asked_name(run_dir: RunDir) -> str | None:
    """The name of what the current start was asked to do; None where no run file says so."""
    name = _mapping(run_dir.asked_config).get("name")
    return name if isinstance(name, str) else None


def learning_rate(run_dir: RunDir, state: RunState) -> float | None:
    """The peak that the run file asks for, or else the highest that was seen."""
    optim = _mapping(run_dir.config).get("optim")
    try:
        return float(optim["lr"])  # type: ignore[index]  # what is not a mapping raises, like what has no number
    except (KeyError, TypeError, ValueError):
        return state.peak_lr


def _mapping(path: Path) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def last_complete(run_dir: RunDir) -> Path | None:
    """The checkpoint that was completed last, or else the complete one of the highest step."""
    if (run_dir.latest / "COMPLETE").exists():
        return run_dir.latest.resolve()
    complete = [
        (step, path)
        for path in (run_dir.checkpoints.iterdir() if run_dir.checkpoints.is_dir() else ())
        if (step := step_of_checkpoint(path)) is not None and (path / "COMPLETE").exists()
    ]
    return max(complete)[1] if complete else None
