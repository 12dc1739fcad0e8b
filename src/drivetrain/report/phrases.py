"""What the panel, the lines and the summary say alike."""

from __future__ import annotations

from typing import Final

from drivetrain.report import wording
from drivetrain.report.state import RunState
from drivetrain.report.throughput import Rates
from drivetrain.telemetry.events import CheckpointEvent

INPUT_BOUND: Final = 0.20
_INPUT_FELT: Final = 0.05
_MOST_RANKS: Final = 4


def eval_text(state: RunState) -> str:
    """The last evaluation, with its own step, and the best one; "" before the first."""
    if state.last_eval is None:
        return ""
    return f"eval after step {wording.count(state.last_eval.step)}: {metrics_text(state)}"


def metrics_text(state: RunState, *, praise: bool = True) -> str:
    """The last evaluation's metrics and how they compare; without `praise` a best one is not called so."""
    last, best = state.last_eval, state.best
    if last is None:
        return ""
    text = ", ".join(wording.metric(name, value) for name, value in last.metrics.items())
    if best is None or len(state.evals) == 1:
        return text
    if best.step != last.step:
        return f"{text} (best {wording.metric(best.name, best.value)} at step {wording.count(best.step)})"
    return f"{text}, the best so far" if praise else text


def saved_text(checkpoint: CheckpointEvent) -> str:
    return f"saved step {wording.count(checkpoint.step)} ({wording.num_bytes(checkpoint.bytes)})"


def end_text(state: RunState) -> str:
    """done after 0:52; "" while the run has not ended."""
    if state.ended is None:
        return ""
    return f"{state.end_status} after {wording.duration(state.ended.seconds)}"


def nothing_left_text(state: RunState) -> str:
    """Of a start whose steps an earlier one had all done."""
    assert state.started is not None
    asked = wording.plural(state.started.total_steps, "step")
    return f"nothing was left to do: {asked} asked for, {wording.count(state.started.start_step)} done before"


def stall_text(state: RunState, stalled_s: float) -> str:
    """That no step comes, and who was heard of least recently."""
    assert state.started is not None
    if state.step < state.first_step:
        text = f"the first step has been under way for {wording.duration(stalled_s)}"
    else:
        text = f"no step for {wording.duration(stalled_s)}; the last was step {wording.count(state.step)}"
    oldest = state.last_words.oldest()
    if not oldest:
        return text
    word = "rank" if len(oldest) == 1 else "ranks"
    step = min(item.step for item in oldest.values())
    where = f" (step {wording.count(step)})" if step > 0 else ""
    return f"{text}; heard of least recently: {word} {wording.rank_ranges(list(oldest))}{where}"


def rates_text(rates: Rates, unit: str, tokens_per_sample: int | None = None) -> str:
    """Rate and data wait, total and by rank (the slowest alone where there are many)."""
    if rates.samples_per_s is None:
        return ""
    text = wording.speed(rates.samples_per_s, unit, tokens_per_sample)
    speeds = {rank: item.samples_per_s for rank, item in rates.per_rank.items()}
    known = {rank: speed for rank, speed in speeds.items() if speed is not None}
    if 1 < len(known) <= _MOST_RANKS:
        text += f" (by rank {' '.join(wording.rate(speed) for speed in known.values())})"
    elif len(known) > _MOST_RANKS:
        slowest = min(known, key=lambda rank: known[rank])
        text += f" (slowest rank {slowest}: {wording.rate(known[slowest])})"
    if rates.data_wait_share is not None:
        text += f" · data wait {wording.share(rates.data_wait_share)}"
    return text


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
    if part >= INPUT_BOUND:
        return f"input-bound: the ranks stood waiting for data {wording.share(part)} of the time{uneven}"
    if part >= _INPUT_FELT:
        return f"the input costs some speed: {wording.share(part)} of the time was data wait{uneven}"
    return f"not input-bound: data wait was {wording.share(part)} of the time{uneven}"
