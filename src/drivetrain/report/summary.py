"""The end of a run in words: what came of it, where the time went, what to look at, what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from drivetrain.report import wording
from drivetrain.report.plain import eval_text
from drivetrain.report.state import RunState
from drivetrain.report.throughput import Rates
from drivetrain.spec.exit_codes import ExitCode
from drivetrain.spec.outcome import Outcome
from drivetrain.spec.parts import StepPart
from drivetrain.spec.run_dir import RunDir, step_of_checkpoint
from drivetrain.telemetry.events import Event, Header, RunEnded, SkippedSampleEvent
from drivetrain.telemetry.reader import read_events

_INPUT_BOUND: Final = 0.20
_INPUT_FELT: Final = 0.05
_MOST_RANKS: Final = 8
# Of a long run only the last steps are read, about 70,000 of them in 4 s; the rest of its events in full.
_MOST_STEP_BYTES: Final = 16 << 20
_LABEL_WIDTH: Final = 10


def summarise(run_dir: RunDir, outcome: Outcome | None) -> str:
    """The closing text, without a newline at its end. Reads the run directory only.

    Args:
        outcome: how the job ended; None for a run without a launcher, whose last event tells then.
    """
    state = _read(run_dir)
    status = _status(state, outcome)
    saved = _last_complete(run_dir)
    blocks = [[_headline(state, outcome, status)]]
    if status != "failed" or state.evals:
        blocks.append([*_result(state), *_speed(state), *_time(state), *_input(state)])
    blocks.append([*_skipped(state), *([] if status == "done" else _safe(state, saved))])
    blocks.append(_look_at(run_dir, saved))
    blocks.append(_try_next(state, run_dir, status, saved))
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def resume_command(run_dir: RunDir) -> str:
    """The command that goes on with this run where its last complete checkpoint stands."""
    path = shlex.quote(str(run_dir.path))
    return f"drivetrain train {shlex.quote(str(run_dir.config))} --output {path} --resume auto"


def data_wait_verdict(rates: Rates) -> str:
    """A sentence on whether the input sets the pace."""
    part = rates.data_wait_share
    if part is None:
        return "data wait is not known: no step was timed"
    worst = max(
        ((item.data_wait_share, rank) for rank, item in rates.per_rank.items() if item.data_wait_share),
        default=None,
    )
    uneven = ""
    if worst is not None and worst[0] - part > 0.10:
        uneven = f", rank {worst[1]} most ({wording.share(worst[0])})"
    if part >= _INPUT_BOUND:
        return f"input-bound: the ranks stood waiting for data {wording.share(part)} of the time{uneven}"
    if part >= _INPUT_FELT:
        return f"the input costs some speed: {wording.share(part)} of the time was data wait{uneven}"
    return f"not input-bound: data wait was {wording.share(part)} of the time{uneven}"


def _read(run_dir: RunDir) -> RunState:
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


def _status(state: RunState, outcome: Outcome | None) -> str:
    if outcome is not None and outcome.exit_code == ExitCode.PREEMPTED:
        return "stopped"
    if outcome is not None and outcome.exit_code != ExitCode.DONE:
        return "failed"
    if state.ended is not None:
        return state.ended.status
    return "done" if outcome is not None else "not known"


def _headline(state: RunState, outcome: Outcome | None, status: str) -> str:
    name = state.started.name if state.started is not None else "The run"
    verb = {"done": "is done", "stopped": "was stopped", "failed": "failed"}.get(
        status, "has not said how it ended"
    )
    if state.started is None:
        text = f"{name} {verb} before it had begun to train"
    else:
        total = wording.count(state.started.total_steps)
        text = f"{name} {verb}: step {wording.count(state.step)} of {total}"
        if state.epoch is not None:
            text += f", epoch {state.epoch:.2f}"
    if state.ended is not None:
        text += f", {wording.duration(state.ended.seconds)}"
    elif outcome is not None:
        text += f", {wording.duration(outcome.ended_wall_s - outcome.started_wall_s)}"
    if outcome is not None and outcome.restarts:
        text += f", {wording.plural(outcome.restarts, 'restart')}"
    reason = _reason(state.ended, outcome) if status != "done" else ""
    return f"{text}\n{_row('reason', reason)}" if reason else text


def _reason(ended: RunEnded | None, outcome: Outcome | None) -> str:
    failure = outcome.earliest_failure if outcome is not None else None
    if failure is None:
        return ended.reason if ended is not None else ""
    how = f"signal {failure.signal}" if failure.signal is not None else f"exit code {failure.exit_code}"
    text = f"rank {failure.rank} on {failure.host} ended first, with {how}"
    return f"{text}: {failure.message}" if failure.message else text


def _result(state: RunState) -> list[str]:
    if state.last_eval is None:
        loss = state.loss.value
        return [] if loss is None else [_row("result", f"training loss {loss:.4g}; nothing was evaluated")]
    text = eval_text(state).removeprefix("eval ")
    on = f"on {wording.count(state.last_eval.num_samples)} held-out samples after step {state.last_eval.step}"
    return [_row("result", f"{text}, {on}")]


def _speed(state: RunState) -> list[str]:
    rates = state.throughput.whole()
    unit, tokens = "samples", None
    if state.started is not None:
        unit, tokens = state.started.sample_unit, state.started.tokens_per_sample
    if rates.samples_per_s is None:
        return [_row("speed", "not known: too few steps, or not all ranks, were timed")]
    lines = [
        _row(
            "speed",
            f"{wording.speed(rates.samples_per_s, unit, tokens)} in all, over {rates.num_steps} usual steps",
        )
    ]
    speeds = {r: item.samples_per_s for r, item in rates.per_rank.items() if item.samples_per_s is not None}
    if 1 < len(speeds) <= _MOST_RANKS:
        lines.append(_row("", "by rank " + " · ".join(f"{r}: {wording.rate(v)}" for r, v in speeds.items())))
    elif len(speeds) > _MOST_RANKS:
        slow, fast = min(speeds, key=lambda r: speeds[r]), max(speeds, key=lambda r: speeds[r])
        ends = (("slowest", slow), ("fastest", fast))
        lines.append(_row("", ", ".join(f"{word} rank {r}: {wording.rate(speeds[r])}" for word, r in ends)))
    return lines


def _time(state: RunState) -> list[str]:
    lines = []
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
        lines.append(_row("time", ", ".join(pieces)))
    shares = state.part_sums.shares()
    if shares:
        largest_first = sorted(shares.items(), key=lambda item: -item[1])
        text = ", ".join(
            f"{part.value.replace('_', ' ')} {wording.share(value)}" for part, value in largest_first
        )
        label = "" if lines else "time"
        lines.append(_row(label, f"of a step: {text}"))
    return lines


def _input(state: RunState) -> list[str]:
    return [_row("input", data_wait_verdict(state.throughput.whole()))] if state.step_s > 0 else []


def _skipped(state: RunState) -> list[str]:
    if not state.num_skipped:
        return []
    lines = [_row("skipped", wording.plural(state.num_skipped, "bad sample") + ", counted with weight 0:")]
    lines += [_row("", f"{item.source} ({item.reason}), step {item.step}") for item in state.first_skipped]
    more = state.num_skipped - len(state.first_skipped)
    return [*lines, _row("", f"and {more} more in the events")] if more else lines


def _last_complete(run_dir: RunDir) -> Path | None:
    """The complete checkpoint of the highest step."""
    complete = [
        (step, path)
        for path in (run_dir.checkpoints.iterdir() if run_dir.checkpoints.is_dir() else ())
        if (step := step_of_checkpoint(path)) is not None and (path / "COMPLETE").exists()
    ]
    return max(complete)[1] if complete else None


def _safe(state: RunState, saved: Path | None) -> list[str]:
    if saved is None:
        return [_row("safe", "nothing: no complete checkpoint was written")]
    step = step_of_checkpoint(saved)
    assert step is not None
    lost = state.step - step
    after = f"; {wording.plural(lost, 'step')} after it must be done again" if lost > 0 else ""
    return [_row("safe", f"the checkpoint of step {wording.count(step)}{after}")]


def _look_at(run_dir: RunDir, saved: Path | None) -> list[str]:
    tensorboard = f"tensorboard --logdir {shlex.quote(str(run_dir.tensorboard))}"
    offers = [
        (run_dir.logs.is_dir(), f"{run_dir.logs}/", "what each rank printed"),
        (run_dir.events.is_dir(), f"{run_dir.events}/", "every step of every rank"),
        (run_dir.metrics.exists(), str(run_dir.metrics), "losses and metrics as a table"),
        (run_dir.tensorboard.is_dir(), tensorboard, "the same as curves"),
        (saved is not None and run_dir.latest.exists(), f"{run_dir.latest}/", "the last complete checkpoint"),
    ]
    return _table("look at", [(what, why) for is_there, what, why in offers if is_there])


def _try_next(state: RunState, run_dir: RunDir, status: str, saved: Path | None) -> list[str]:
    """Commands that fit what was seen; only such as exist."""
    offers: list[tuple[str, str]] = []
    started = state.started
    if status != "done":
        if saved is not None:
            offers.append(("go on from the checkpoint", resume_command(run_dir)))
        return _commands(offers)
    if saved is not None:
        command = f"drivetrain export {shlex.quote(str(run_dir.path))}"
        offers.append(("write the weights as safetensors", command))
    if started is None:
        return _commands(offers)
    again = f"drivetrain train {shlex.quote(str(run_dir.config))} --output"
    wait = state.throughput.whole().data_wait_share
    if wait is not None and wait >= _INPUT_BOUND:
        now = f" (now {started.loader})" if started.loader else ""
        command = f"{again} {_beside(run_dir, 'workers')} --workers NUMBER"
        offers.append((f"give the input more workers{now}", command))
    elif _fits_more_processes(state):
        num = 2 * started.world_size
        command = f"{again} {_beside(run_dir, f'{num}-processes')} --nproc-per-node {num}"
        offers.append((f"the same batches on {num} processes, if there are as many devices", command))
    if saved is not None and started.num_samples > 0:
        epochs = started.total_steps * started.global_batch / started.num_samples
        # A run of less than half an epoch was ended by max_steps.
        length = f"--epochs {round(2 * epochs)}" if epochs > 0.5 else f"--max-steps {2 * started.total_steps}"
        command = f"{resume_command(run_dir)} {length}"
        offers.append(("train twice as long", command))
    return _commands(offers)


def _fits_more_processes(state: RunState) -> bool:
    """One machine, a global batch that gives each of twice the ranks a sample, and GPUs; processes that share
    a machine's CPUs already get no faster by being more, unless there is only one."""
    started = state.started
    hosts = {header.host for header in state.headers.values()}
    if started is None or len(hosts) != 1 or started.global_batch < 2 * started.world_size:
        return False
    return started.world_size == 1 or all(device.startswith("cuda") for device in started.devices)


def _beside(run_dir: RunDir, suffix: str) -> str:
    return shlex.quote(str(run_dir.path.with_name(f"{run_dir.path.name}-{suffix}")))


def _row(label: str, text: str) -> str:
    return f"{label:<{_LABEL_WIDTH}}{text}"


def _commands(offers: list[tuple[str, str]]) -> list[str]:
    """Each command on a line of its own below what it is for, to be copied."""
    lines = []
    for index, (purpose, command) in enumerate(offers):
        lines += [_row("try next" if index == 0 else "", f"{purpose}:"), _row("", f"  {command}")]
    return lines


def _table(label: str, rows: list[tuple[str, str]]) -> list[str]:
    width = min(max((len(what) for what, _ in rows), default=0), 60)
    return [
        _row(label if index == 0 else "", f"{what:<{width}}  # {why}")
        for index, (what, why) in enumerate(rows)
    ]
