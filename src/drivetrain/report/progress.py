"""Shows a run while it trains, from the events that its ranks write."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from types import TracebackType
from typing import Final, Protocol, TextIO

from drivetrain.report.plain import PlainScreen
from drivetrain.report.state import RunState
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import EvalEvent, RunStarted, StepEvent
from drivetrain.telemetry.reader import EventTail, read_events

_POLL_INTERVAL_S: Final = 0.1
_DRAIN_TIMEOUT_S: Final = 5.0
_JOIN_TIMEOUT_S: Final = 10.0


class _Screen(Protocol):
    def start(self) -> None: ...
    def raw(self, text: str) -> None: ...
    def update(self, state: RunState, *, now_s: float, stalled_s: float, is_last: bool = False) -> None: ...
    def stop(self) -> None: ...


class ProgressDisplay:
    """Follows `events/` of all ranks in a thread of its own and draws, until the `with` block ends.

        with ProgressDisplay(run_dir) as display:
            launch(request, on_line=display.line)

    Enter it before the ranks start: what stands in the run directory already belongs to an earlier start, of
    which only the evaluations are taken, for the best so far. On leaving, also by an exception, everything
    written is read and the last state drawn. A display that fails says so once and never ends the run.

    Args:
        stream: where to draw; stderr by default, since progress is not a result.
        force_plain: True for lines, False for the live panel; None takes the panel on a terminal.
        num_ranks: how many ranks are being started, to be shown until they say so themselves.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        stream: TextIO | None = None,
        force_plain: bool | None = None,
        num_ranks: int | None = None,
    ) -> None:
        self._run_dir = run_dir
        self._stream = stream if stream is not None else sys.stderr
        self._plain = PlainScreen(self._stream, str(run_dir.path))
        self._force_plain = force_plain
        self._screen: _Screen = self._plain
        self._state = RunState(expected_ranks=num_ranks)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_step_s = time.monotonic()

    def __enter__(self) -> ProgressDisplay:
        self._tail = EventTail(self._run_dir, from_end=True)
        self._last_step_s = time.monotonic()
        with contextlib.suppress(OSError):  # a first start has no events yet
            earlier = read_events(self._run_dir.rank_events(0), kinds={RunStarted, EvalEvent})
            self._state.remember(earlier)
        if not self._wants_plain():
            # rich takes 0.1 s to import: only where it draws.
            from drivetrain.report.live import LiveScreen

            self._screen = LiveScreen(self._stream, str(self._run_dir.path))
        self._screen.start()
        self._thread = threading.Thread(target=self._follow, name="progress-display", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join(timeout=_JOIN_TIMEOUT_S)

    def line(self, text: str) -> None:
        """Shows a line of rank 0's output, without its newline. Any thread may call this, at any time."""
        self._screen.raw(text)

    def _wants_plain(self) -> bool:
        if self._force_plain is not None:
            return self._force_plain
        try:
            return not self._stream.isatty() or os.environ.get("TERM", "dumb") == "dumb"
        except ValueError:  # a closed stream
            return True

    def _follow(self) -> None:
        failure = None
        try:
            self._draw_until_stopped()
            self._drain()
            self._update(is_last=True)
        except Exception as error:  # noqa: BLE001  a display must never be why a run ends
            failure = f"the progress display failed and stays off: {type(error).__name__}: {error}"
        screen, self._screen = self._screen, self._plain
        with contextlib.suppress(OSError, ValueError):  # the terminal has gone
            screen.stop()
        if failure is not None:
            self._plain.raw(failure)

    def _draw_until_stopped(self) -> None:
        while not self._stop.is_set():
            is_busy = self._take_in()
            # The ranks' headers follow each other closely; the opening waits for all of them, but not long.
            if self._all_ranks_are_known():
                self._update()
            self._stop.wait(0.01 if is_busy else _POLL_INTERVAL_S)

    def _drain(self) -> None:
        deadline_s = time.monotonic() + _DRAIN_TIMEOUT_S
        while self._take_in() and time.monotonic() < deadline_s:
            pass

    def _take_in(self) -> bool:
        events = self._tail.poll()
        for event in events:
            self._state.apply(event)
            if isinstance(event, (StepEvent, RunStarted)):
                self._last_step_s = time.monotonic()
        return bool(events)

    def _all_ranks_are_known(self) -> bool:
        started = self._state.started
        if started is None or len(self._state.headers) >= started.world_size:
            return True
        return time.time() - started.wall_s > 1.0

    def _update(self, *, is_last: bool = False) -> None:
        now_s = time.monotonic()
        stalled_s = now_s - self._last_step_s
        self._screen.update(self._state, now_s=now_s, stalled_s=stalled_s, is_last=is_last)
