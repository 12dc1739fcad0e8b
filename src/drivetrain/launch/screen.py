"""Shows rank 0's log on the screen while it is written."""

from __future__ import annotations

import codecs
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

_POLL_S = 0.05
_PARTIAL_AFTER_S = 0.3
_CHUNK_BYTES = 1 << 16
# A line, or a progress bar's redrawing; "\r" as the last character so far may be the half of "\r\n".
_PIECE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r(?!$))")


class ScreenTail:
    """A thread that passes on what is appended to a file.

    `show` gets pieces of text exactly as they were written, each ending in its own "\\n" or "\\r", so that
    progress bars redraw themselves; a piece without an end of line is shown once nothing has followed it for
    0.3 s. Bytes that are no UTF-8 are replaced. When `show` raises OSError (the reader of a pipe has gone),
    nothing more is shown, and the job goes on.
    """

    def __init__(self, path: Path, show: Callable[[str], None], *, start: int) -> None:
        self._path = path
        self._show = show
        self._start = start
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="screen-tail")
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Shows what is left and ends."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._follow()
        except OSError:
            return

    def _follow(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        pending = ""
        last_s = time.monotonic()
        with self._path.open("rb") as file:
            file.seek(self._start)
            while True:
                is_last = self._stop.is_set()
                while chunk := file.read(_CHUNK_BYTES):
                    pending = self._show_complete(pending + decoder.decode(chunk))
                    last_s = time.monotonic()
                if is_last:
                    break
                if pending and time.monotonic() - last_s > _PARTIAL_AFTER_S:
                    self._show(pending)
                    pending = ""
                self._stop.wait(_POLL_S)
        pending += decoder.decode(b"", final=True)
        if pending:
            self._show(pending)

    def _show_complete(self, text: str) -> str:
        """Shows the complete pieces, one a call, and returns the rest."""
        end = 0
        for match in _PIECE.finditer(text):
            self._show(match.group())
            end = match.end()
        return text[end:]
