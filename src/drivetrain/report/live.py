"""Progress on a terminal: the panel at the bottom, rank 0's own output and messages above it."""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import Final, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from drivetrain.report import wording
from drivetrain.report.opening import opening_lines
from drivetrain.report.panel import panel
from drivetrain.report.state import RunState
from drivetrain.report.stray_lines import StrayLines

_REDRAW_INTERVAL_S: Final = 0.25
_MOST_LINES_WAITING: Final = 2000


class LiveScreen:
    """Draws with rich. Lines may come from any thread; everything is drawn by the thread that calls `update`,
    so that a rank that prints thousands of lines a second is not slowed by the drawing.

    Whatever else wrote to the terminal would shift the panel, of which pieces then stay behind. So what this
    process prints to stderr meanwhile (another thread's warnings) is shown above it like rank 0's lines. And
    an empty line under the panel takes what the terminal itself echoes: a ^C behind the panel's last column
    would wrap.
    """

    def __init__(self, stream: TextIO, run_path: str) -> None:
        self._console = Console(file=stream, force_terminal=True)
        self._run_path = run_path
        self._live = Live(
            console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._stray = StrayLines(sys.stderr, self.raw) if stream is sys.stderr else None
        self._lines: deque[str] = deque()
        self._num_left_out = 0
        self._lock = threading.Lock()
        self._opened = False
        self._last_draw_s = float("-inf")

    def start(self) -> None:
        self._live.start()
        if self._stray is not None:
            sys.stderr = self._stray

    def raw(self, text: str) -> None:
        """A line of rank 0's own output; drawn with the next update. A flood is cut, and that is said."""
        with self._lock:
            if len(self._lines) < _MOST_LINES_WAITING:
                self._lines.append(text)
            else:
                self._num_left_out += 1

    def update(self, state: RunState, *, now_s: float, stalled_s: float, is_last: bool = False) -> None:
        """Draws lines that wait at once, the panel at most four times a second."""
        if not self._opened and state.started is not None:
            self._opened = True
            for line in opening_lines(state, self._run_path):
                self._above(Text(self._printable(line)))
        self._draw_lines()
        for message in state.take_messages():
            style = {"warning": "yellow", "error": "bold red"}.get(message.level, "")
            prefix = "" if message.level == "info" else f"{message.level}: "
            self._above(Text(self._printable(prefix + message.text), style=style))
        if is_last or now_s - self._last_draw_s >= _REDRAW_INTERVAL_S:
            self._last_draw_s = now_s
            width, encoding = self._console.width, self._console.encoding
            shown = panel(state, width=width, encoding=encoding, stalled_s=stalled_s, is_last=is_last)
            self._live.update(shown if is_last else Group(shown, Text("")), refresh=True)

    def stop(self) -> None:
        """Leaves the last panel on the screen and gives the cursor back."""
        if self._stray is not None:
            if sys.stderr is self._stray:
                sys.stderr = self._stray.stream
            self._stray.end()
        self._draw_lines()
        self._live.stop()

    def _draw_lines(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, deque()
            left_out, self._num_left_out = self._num_left_out, 0
        if lines:
            # What a carriage return would have overwritten is not shown (other progress bars).
            shown = "\n".join(self._printable(line.rstrip("\r").rsplit("\r", 1)[-1]) for line in lines)
            self._above(Text.from_ansi(shown))
        if left_out:
            self._above(Text(f"({wording.plural(left_out, 'line')} left out here; the log has them)"))

    def _above(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)

    def _printable(self, text: str) -> str:
        return wording.printable(text, self._console.encoding)
