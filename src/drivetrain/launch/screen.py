"""Shows rank 0's log on the screen while it is written."""

from __future__ import annotations

import codecs
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from drivetrain.launch.traceback_text import begins_traceback

_POLL_S = 0.05
_PARTIAL_AFTER_S = 0.3
_CHUNK_BYTES = 1 << 16
_MAX_PIECE_CHARS = 1 << 16
# A line's end, or a progress bar's redrawing; "\r" as the last character so far may be the half of "\r\n".
_END = re.compile(r"\r\n|\n|\r(?!\Z)")


class ScreenTail:
    """A thread that passes on what is appended to a file.

    `show` gets pieces of text exactly as they were written, each ending in its own "\\n" or "\\r", so that
    progress bars redraw themselves; a piece without an end of line is shown once nothing has followed it for
    0.3 s, or once it is 64 Ki characters long. Bytes that are no UTF-8 are replaced. When `show` raises
    OSError (the reader of a pipe has gone), nothing more is shown, and the job goes on.
    """

    def __init__(self, path: Path, show: Callable[[str], None], *, start: int) -> None:
        self._path = path
        self._show = show
        self._start = start
        self._stop = threading.Event()
        self._ends_at_traceback = threading.Event()
        self._pending = _Pieces()
        self._thread = threading.Thread(target=self._run, daemon=True, name="screen-tail")
        self._thread.start()

    def end_at_traceback(self) -> None:
        """From now on the first traceback ends the showing.

        A rank that is interrupted dies of a KeyboardInterrupt, which nobody needs to see. What it says before
        that, of saving its state, is shown.
        """
        self._ends_at_traceback.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Shows what is left and ends."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._follow()
        except (OSError, _TracebackBegunError):
            return

    def _follow(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        last_s = time.monotonic()
        with self._path.open("rb") as file:
            file.seek(self._start)
            while True:
                is_last = self._stop.is_set()
                while chunk := file.read(_CHUNK_BYTES):
                    self._pass_on(self._pending.add(decoder.decode(chunk)))
                    last_s = time.monotonic()
                if is_last:
                    break
                if time.monotonic() - last_s > _PARTIAL_AFTER_S:
                    self._pass_on(self._pending.rest())
                self._stop.wait(_POLL_S)
        self._pass_on(self._pending.add(decoder.decode(b"", final=True)))
        self._pass_on(self._pending.rest())

    def _pass_on(self, pieces: list[str]) -> None:
        for piece in pieces:
            if self._ends_at_traceback.is_set() and begins_traceback(piece):
                raise _TracebackBegunError
            self._show(piece)


class _TracebackBegunError(Exception):
    """Nothing more is to be shown."""


class _Pieces:
    """Cuts a stream of text at the ends of its lines; searches each character once, however long a line."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._num_chars = 0

    def add(self, text: str) -> list[str]:
        """The pieces that `text` completes. A "\\r" at the very end waits for what follows it."""
        if self._parts and self._parts[-1].endswith("\r"):
            text = self._parts.pop() + text
            self._num_chars = sum(map(len, self._parts))
        pieces, start = [], 0
        for match in _END.finditer(text):
            pieces.append("".join([*self._parts, text[start : match.end()]]))
            self._parts, self._num_chars, start = [], 0, match.end()
        if start < len(text):
            self._parts.append(text[start:])
            self._num_chars += len(text) - start
        if self._num_chars >= _MAX_PIECE_CHARS and not self._parts[-1].endswith("\r"):
            pieces += self.rest()
        return pieces

    def rest(self) -> list[str]:
        """What has no end yet, as one piece; nothing where nothing is left."""
        rest = "".join(self._parts)
        self._parts, self._num_chars = [], 0
        return [rest] if rest else []
