"""The end of a run in words: what came of it, where the time went, what to look at, what to do next."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drivetrain.report import restarts, wording
from drivetrain.report.advice import resume_command, try_next
from drivetrain.report.divergence import divergence
from drivetrain.report.layout import Layout
from drivetrain.report.phrases import data_wait_verdict, metrics_text, nothing_left_text
from drivetrain.report.state import RunState
from drivetrain.report.this_start import asked_name, belongs_to, last_complete, read_state, status_of
from drivetrain.spec.outcome import Outcome
from drivetrain.spec.parts import StepPart
from drivetrain.spec.run_dir import RunDir, step_of_checkpoint
from drivetrain.telemetry.events import RunEnded

__all__ = ["resume_command", "summarise"]

_MOST_RANKS: Final = 8
_VERBS: Final = {
    "done": "is done",
    "stopped": "was stopped",
    "interrupted": "was interrupted",
    "failed": "failed",
}
# A label and its text; a further line of the same has no label.
_Rows = list[tuple[str, str]]


def summarise(run_dir: RunDir, outcome: Outcome | None, *, width: int | None = None) -> str:
    """The closing text, without a newline at its end. Reads the run directory only.

    A start that ended before its first step says why, what is safe and how to go on; what an earlier start
    came to is not its own.

    Args:
        outcome: how the job ended; None for a run without a launcher, whose last event tells then.
        width: columns to lay it out in; None takes the terminal's.
    """
    layout = Layout(width=width if width is not None else shutil.get_terminal_size().columns)
    state = read_state(run_dir)
    is_own = belongs_to(state, outcome)
    end = _End(
        run_dir=run_dir,
        outcome=outcome,
        state=state,
        is_own=is_own,
        status=status_of(state, outcome, is_own=is_own),
        saved=last_complete(run_dir),
    )
    has_own_results = end.status == "done" or (is_own and state.has_trained)
    blocks = _whole(end, layout) if has_own_results else _before_first_step(end, layout)
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


@dataclass(frozen=True, kw_only=True)
class _End:
    """What is known of how a start ended; `is_own`: the events that `state` folds last are this start's."""

    run_dir: RunDir
    outcome: Outcome | None
    state: RunState
    is_own: bool
    status: str
    saved: Path | None

    @property
    def ended(self) -> RunEnded | None:
        return self.state.ended if self.is_own else None


def _whole(end: _End, layout: Layout) -> list[list[str]]:
    state, is_done = end.state, end.status == "done"
    growth = divergence(state) if state.has_trained else []
    has_diverged = bool(growth)
    head = [] if is_done else _reason(end)
    head += [("diverged" if index == 0 else "", text) for index, text in enumerate(growth)]
    measured = [*_speed(state), *_time(state), *_input(state)] if state.has_trained else []
    kept = [
        *_skipped(state),
        *restarts.rows(restarts.timed_restarts(end.run_dir)),
        *([] if is_done else _safe(state.step, end.saved)),
    ]
    offers = try_next(state, end.run_dir, is_done=is_done, saved=end.saved, has_diverged=has_diverged)
    return [
        [*layout.headline(_headline(end, has_diverged=has_diverged)), *_laid(head, layout)],
        _laid([*_result(state, has_diverged=has_diverged), *measured], layout),
        _laid(kept, layout),
        layout.table("look at", _look_at(end.run_dir, end.saved)),
        layout.commands("try next", offers),
    ]


def _before_first_step(end: _End, layout: Layout) -> list[list[str]]:
    state = end.state
    own_name = state.started.name if end.is_own and state.has_begun and state.started is not None else None
    name = own_name or asked_name(end.run_dir) or "The run"
    offers = try_next(state, end.run_dir, is_done=False, saved=end.saved, has_diverged=False)
    return [
        [
            *layout.headline(f"{name} {_verb(end.status)} before its first step{_took(end)}"),
            *_laid(_reason(end), layout),
        ],
        _laid(_safe(None, end.saved), layout),
        layout.commands("try next", offers),
    ]


def _laid(rows: _Rows, layout: Layout) -> list[str]:
    return [line for label, text in rows for line in layout.row(label, text)]


def _verb(status: str) -> str:
    return _VERBS.get(status, "has not said how it ended")


def _headline(end: _End, *, has_diverged: bool) -> str:
    state, started = end.state, end.state.started
    verb = "ended, but its training diverged" if has_diverged and end.status == "done" else _verb(end.status)
    if started is None:
        return f"{asked_name(end.run_dir) or 'The run'} {verb}{_took(end)}"
    if state.nothing_was_left:
        return f"{started.name} {verb}; {nothing_left_text(state)}"
    where = f"step {wording.count(state.step)}"
    if started.total_steps > 0:
        where += f" of {wording.count(started.total_steps)}"
    if state.epoch is not None:
        where += f", epoch {state.epoch:.2f}"
    return f"{started.name} {verb}: {where}{_took(end)}"


def _took(end: _End) -> str:
    text, outcome = "", end.outcome
    if end.ended is not None:
        text = f", {wording.duration(end.ended.seconds)}"
    elif outcome is not None:
        text = f", {wording.duration(outcome.ended_wall_s - outcome.started_wall_s)}"
    if outcome is not None and outcome.restarts:
        text += f", {wording.plural(outcome.restarts, 'restart')}"
    return text


def _reason(end: _End) -> _Rows:
    failure = end.outcome.earliest_failure if end.outcome is not None else None
    if failure is not None:
        how = f"signal {failure.signal}" if failure.signal is not None else f"exit code {failure.exit_code}"
        text = f"rank {failure.rank} on {failure.host} ended first, with {how}"
        return [("reason", f"{text}: {failure.message}" if failure.message else text)]
    if end.outcome is not None and end.outcome.error:
        return [("reason", end.outcome.error)]
    return [("reason", end.ended.reason)] if end.ended is not None and end.ended.reason else []


def _result(state: RunState, *, has_diverged: bool) -> _Rows:
    if state.last_eval is None:
        loss = state.loss.value
        return [] if loss is None else [("result", f"training loss {loss:.4g}; nothing was evaluated")]
    text = metrics_text(state, praise=not has_diverged)
    samples = wording.count(state.last_eval.num_samples)
    step = wording.count(state.last_eval.step)
    return [("result", f"{text}, on {samples} held-out samples after step {step}")]


def _speed(state: RunState) -> _Rows:
    rates = state.throughput.whole()
    unit, tokens = "samples", None
    if state.started is not None:
        unit, tokens = state.started.sample_unit, state.started.tokens_per_sample
    if rates.samples_per_s is None:
        return [("speed", "not known: too few steps, or not all ranks, were timed")]
    lines: _Rows = [
        (
            "speed",
            f"{wording.speed(rates.samples_per_s, unit, tokens)} in all, over {rates.num_steps} usual steps",
        )
    ]
    speeds = {r: item.samples_per_s for r, item in rates.per_rank.items() if item.samples_per_s is not None}
    if 1 < len(speeds) <= _MOST_RANKS:
        lines.append(("", "by rank " + " · ".join(f"{r}: {wording.rate(v)}" for r, v in speeds.items())))
    elif len(speeds) > _MOST_RANKS:
        slow, fast = min(speeds, key=lambda r: speeds[r]), max(speeds, key=lambda r: speeds[r])
        ends = (("slowest", slow), ("fastest", fast))
        lines.append(("", ", ".join(f"{word} rank {r}: {wording.rate(speeds[r])}" for word, r in ends)))
    return lines


def _time(state: RunState) -> _Rows:
    lines: _Rows = []
    if state.step_s > 0 and state.num_steps_read == state.step - state.first_step + 1:
        checkpoint_in_steps_s = state.part_sums.seconds.get(StepPart.CHECKPOINT, 0.0)
        pieces = [
            f"steps {wording.duration(state.step_s - checkpoint_in_steps_s)}",
            f"evaluation {wording.duration(state.eval_s)}",
            f"checkpoints {wording.duration(state.checkpoint_s)}",
        ]
        if state.ended is not None:
            rest_s = (
                state.ended.seconds - state.step_s - state.eval_s - state.checkpoint_s + checkpoint_in_steps_s
            )
            pieces.append(f"start and the rest {wording.duration(max(rest_s, 0.0))}")
        lines.append(("time", ", ".join(pieces)))
    shares = state.part_sums.shares()
    if shares:
        largest_first = sorted(shares.items(), key=lambda item: -item[1])
        text = ", ".join(
            f"{part.value.replace('_', ' ')} {wording.share(value)}" for part, value in largest_first
        )
        label = "" if lines else "time"
        lines.append((label, f"of a step: {text}"))
    return lines


def _input(state: RunState) -> _Rows:
    return [("input", data_wait_verdict(state.throughput.whole()))] if state.step_s > 0 else []


def _skipped(state: RunState) -> _Rows:
    if not state.num_skipped:
        return []
    rows = [("skipped", wording.plural(state.num_skipped, "bad sample") + ", counted with weight 0:")]
    rows += [("", f"{item.source} ({item.reason}), step {item.step}") for item in state.first_skipped]
    more = state.num_skipped - len(state.first_skipped)
    return [*rows, ("", f"and {more} more in the events")] if more else rows


def _safe(step: int | None, saved: Path | None) -> _Rows:
    """What is not lost; `step`: how far this start came."""
    if saved is None:
        return [("safe", "nothing: no complete checkpoint was written")]
    saved_step = step_of_checkpoint(saved)
    assert saved_step is not None
    lost = step - saved_step if step is not None else 0
    after = f"; {wording.plural(lost, 'step')} after it must be done again" if lost > 0 else ""
    return [("safe", f"the checkpoint of step {wording.count(saved_step)}{after}")]


def _look_at(run_dir: RunDir, saved: Path | None) -> _Rows:
    tensorboard = f"tensorboard --logdir {shlex.quote(str(run_dir.tensorboard))}"
    offers = [
        (run_dir.logs.is_dir(), f"{run_dir.logs}/", "what each rank printed"),
        (run_dir.events.is_dir(), f"{run_dir.events}/", "every step of every rank"),
        (run_dir.metrics.exists(), str(run_dir.metrics), "losses and metrics as a table"),
        (run_dir.tensorboard.is_dir(), tensorboard, "the same as curves"),
        (saved is not None and run_dir.latest.exists(), f"{run_dir.latest}/", "the last complete checkpoint"),
    ]
    return [(what, why) for is_there, what, why in offers if is_there]
