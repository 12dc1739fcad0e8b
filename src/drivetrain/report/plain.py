"""Progress as lines, for files, pipes and CI: few of them, and each whole in itself."""

from __future__ import annotations

import math
import threading
from typing import Final, TextIO

from drivetrain.report import wording
from drivetrain.report.opening import opening_lines
from drivetrain.report.state import RunState
from drivetrain.report.throughput import Rates

_NEWS_INTERVAL_S: Final = 1.0
_FIRST_INTERVAL_S: Final = 2.0
_LONGEST_INTERVAL_S: Final = 60.0
_STALL_S: Final = 60.0
_MOST_RANKS: Final = 4


class PlainScreen:
    """Writes to `stream`: an opening, then a line when something new was evaluated or saved, but at most one
    a second, and otherwise one every 2 s at first and every minute in a run of hours.

    A stream that can no longer be written (a closed pipe) is left alone.
    """

    def __init__(self, stream: TextIO, run_path: str) -> None:
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._run_path = run_path
        self._lock = threading.Lock()
        self._opened = False
        self._start_s: float | None = None
        self._last_line_s = -math.inf
        self._told_step = -1
        self._told_eval: object = None
        self._told_checkpoint: object = None
        self._told_stall_s = 0.0

    def start(self) -> None:
        """Nothing to prepare."""

    def raw(self, text: str) -> None:
        """A line of rank 0's own output, at once."""
        self._print(text)

    def update(self, state: RunState, *, now_s: float, stalled_s: float, is_last: bool = False) -> None:
        """Prints what is due. `stalled_s`: since the last step was seen."""
        self._start_s = now_s if self._start_s is None else self._start_s
        if not self._opened and state.started is not None:
            self._opened = True
            self._last_line_s = now_s
            for line in opening_lines(state, self._run_path):
                self._print(line)
        for message in state.take_messages():
            self._print(message.text if message.level == "info" else f"{message.level}: {message.text}")
        if state.started is not None and self._is_due(state, now_s, is_last):
            self._print_status(state, now_s)
        elif stalled_s >= max(_STALL_S, 2 * self._told_stall_s) and not is_last:
            self._told_stall_s = stalled_s
            self._print(f"no step for {wording.duration(stalled_s)}; the last was step {state.step}")
        if stalled_s < _STALL_S:
            self._told_stall_s = 0.0

    def stop(self) -> None:
        """Nothing to undo."""

    def _is_due(self, state: RunState, now_s: float, is_last: bool) -> bool:
        if is_last:
            return self._has_news(state) or state.step != self._told_step or state.ended is not None
        quiet_s = now_s - self._last_line_s
        if self._has_news(state):
            return quiet_s >= _NEWS_INTERVAL_S
        assert self._start_s is not None
        usual_s = min(max((now_s - self._start_s) / 30, _FIRST_INTERVAL_S), _LONGEST_INTERVAL_S)
        return quiet_s >= usual_s and state.step != self._told_step

    def _has_news(self, state: RunState) -> bool:
        return state.last_eval is not self._told_eval or state.checkpoint is not self._told_checkpoint

    def _print_status(self, state: RunState, now_s: float) -> None:
        pieces = [status_line(state, with_eval=state.last_eval is not self._told_eval)]
        if state.checkpoint is not None and state.checkpoint is not self._told_checkpoint:
            pieces.append(f"saved step {state.checkpoint.step}")
        self._told_eval, self._told_checkpoint = state.last_eval, state.checkpoint
        self._told_step, self._last_line_s = state.step, now_s
        self._print(" · ".join(pieces))

    def _print(self, text: str) -> None:
        with self._lock:
            try:
                self._stream.write(wording.printable(text, self._encoding) + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                return  # the reader of the pipe has gone; the run goes on and its files tell all


def status_line(state: RunState, *, with_eval: bool) -> str:
    """Where the run stands, in one line."""
    assert state.started is not None
    total = state.started.total_steps
    pieces = [f"step {wording.count(state.step)}/{wording.count(total)}"]
    if state.epoch is not None:
        pieces.append(f"epoch {state.epoch:.2f}")
    if state.loss.value is not None:
        pieces.append(f"loss {state.loss.value:.4g}")
    if with_eval and state.last_eval is not None:
        pieces.append(eval_text(state))
    if state.lr is not None:
        pieces.append(f"lr {state.lr:.3g}")
    rates = state.rates()
    pieces.append(rates_text(rates, state.started.sample_unit, state.started.tokens_per_sample))
    eta_s = state.eta_s(rates)
    if state.ended is not None:
        pieces.append(f"{state.ended.status} after {wording.duration(state.ended.seconds)}")
    elif eta_s is not None and state.step < total:
        pieces.append(f"ETA {wording.clock_time(eta_s)}")
    if state.num_skipped:
        pieces.append(f"{state.num_skipped} skipped")
    return " · ".join(piece for piece in pieces if piece)


def eval_text(state: RunState) -> str:
    """The last evaluation and the best one."""
    last, best = state.last_eval, state.best
    if last is None:
        return ""
    text = ", ".join(wording.metric(name, value) for name, value in last.metrics.items())
    if best is None or len(state.evals) == 1:
        return f"eval {text}"
    if last.metrics.get(best.name) == best.value:
        text += ", the best so far"
    else:
        text += f" (best {wording.metric(best.name, best.value)} at step {best.step})"
    return f"eval {text}"


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
