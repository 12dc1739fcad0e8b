"""Progress as lines, for files, pipes and CI: few of them, and each whole in itself."""

from __future__ import annotations

import math
import threading
from typing import Final, TextIO

from drivetrain.report import wording
from drivetrain.report.opening import opening_lines, waiting_text
from drivetrain.report.phrases import (
    end_text,
    eval_text,
    nothing_left_text,
    rates_text,
    saved_text,
    stall_text,
)
from drivetrain.report.state import RunState

_NEWS_INTERVAL_S: Final = 1.0
_FIRST_INTERVAL_S: Final = 2.0
_LONGEST_INTERVAL_S: Final = 60.0
_STALL_S: Final = 60.0
_FIRST_WAIT_S: Final = 5.0


class PlainScreen:
    """Writes to `stream`: an opening, a line of its own for what was newly evaluated or saved, but at most
    once a second, and otherwise where the run stands, every 2 s at first and every minute in a run of hours.

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
        self._last_status_s = -math.inf
        self._told_step = -1
        self._told_eval: object = None
        self._told_checkpoint: object = None
        self._told_stall_s = 0.0
        self._told_waiting = ""
        self._told_waiting_s = 0.0

    def start(self) -> None:
        """Nothing to prepare."""

    def raw(self, text: str) -> None:
        """A line of rank 0's own output, at once."""
        self._print(text)

    def update(self, state: RunState, *, now_s: float, stalled_s: float, is_last: bool = False) -> None:
        """Prints what is due. `stalled_s`: since the last step, or before the first since the start."""
        self._start_s = now_s if self._start_s is None else self._start_s
        if not self._opened and state.started is not None:
            self._opened = True
            self._last_line_s = self._last_status_s = now_s
            for line in opening_lines(state, self._run_path):
                self._print(line)
        for message in state.take_messages():
            self._print(message.text if message.level == "info" else f"{message.level}: {message.text}")
        if state.started is None:
            self._wait(state, now_s, stalled_s)
            return
        if is_last or now_s - self._last_line_s >= _NEWS_INTERVAL_S:
            self._print_news(state, now_s)
        if is_last:
            self._print_end(state)
        elif self._is_status_due(state, now_s):
            self._print_status(state, now_s)
        elif stalled_s >= max(_STALL_S, 2 * self._told_stall_s):
            self._told_stall_s = stalled_s
            self._print(stall_text(state, stalled_s))
        if stalled_s < _STALL_S:
            self._told_stall_s = 0.0

    def stop(self) -> None:
        """Nothing to undo."""

    def _wait(self, state: RunState, now_s: float, waited_s: float) -> None:
        """Before the run has begun: what it waits for, when that changes and each minute, but not at once."""
        if waited_s < _FIRST_WAIT_S:
            return
        text = waiting_text(state)
        if text != self._told_waiting or now_s - self._told_waiting_s >= _LONGEST_INTERVAL_S:
            self._told_waiting, self._told_waiting_s = text, now_s
            self._print(f"{text}; {wording.duration(waited_s)} so far")

    def _is_status_due(self, state: RunState, now_s: float) -> bool:
        # How it ended is for the last line to say.
        if not state.has_trained or state.step == self._told_step or state.ended is not None:
            return False
        assert self._start_s is not None
        usual_s = min(max((now_s - self._start_s) / 30, _FIRST_INTERVAL_S), _LONGEST_INTERVAL_S)
        return now_s - self._last_status_s >= usual_s and now_s - self._last_line_s >= _NEWS_INTERVAL_S

    def _print_news(self, state: RunState, now_s: float) -> None:
        """An evaluation or a checkpoint comes with its own step: steps themselves are told a little late."""
        if state.new_eval is not None and state.new_eval is not self._told_eval:
            self._told_eval, self._last_line_s = state.new_eval, now_s
            self._print(eval_text(state))
        if state.checkpoint is not None and state.checkpoint is not self._told_checkpoint:
            self._told_checkpoint, self._last_line_s = state.checkpoint, now_s
            self._print(saved_text(state.checkpoint))

    def _print_status(self, state: RunState, now_s: float) -> None:
        self._told_step, self._last_status_s, self._last_line_s = state.step, now_s, now_s
        self._print(status_line(state))

    def _print_end(self, state: RunState) -> None:
        """Where the run stood last and how it ended; what a line has said already is not said again."""
        assert state.started is not None
        if state.nothing_was_left:
            self._print(nothing_left_text(state))
        elif state.step != self._told_step:
            self._print(status_line(state))
        elif state.ended is not None:
            self._print(f"{end_text(state)} at {wording.step_of(state.step, state.started.total_steps)}")

    def _print(self, text: str) -> None:
        with self._lock:
            try:
                self._stream.write(wording.printable(text, self._encoding) + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                return  # the reader of the pipe has gone; the run goes on and its files tell all


def status_line(state: RunState) -> str:
    """Where the run stands, in one line."""
    assert state.started is not None
    total = state.started.total_steps
    pieces = [wording.step_of(state.step, total)]
    if state.epoch is not None:
        pieces.append(f"epoch {state.epoch:.2f}")
    if state.loss.value is not None:
        pieces.append(f"loss {state.loss.value:.4g}")
    if state.lr is not None:
        pieces.append(f"lr {state.lr:.3g}")
    rates = state.rates()
    pieces.append(rates_text(rates, state.started.sample_unit, state.started.tokens_per_sample))
    eta_s = state.eta_s(rates)
    if state.ended is not None:
        pieces.append(end_text(state))
    elif eta_s is not None and state.step < total:
        pieces.append(f"ETA {wording.clock_time(eta_s)}")
    if state.num_skipped:
        pieces.append(f"{state.num_skipped} skipped")
    return " · ".join(piece for piece in pieces if piece)
