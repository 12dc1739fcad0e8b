"""A stand-in for stderr that passes on whole lines."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import TextIO


class StrayLines(io.TextIOBase):
    """Gives each line written to it to `show`, from the thread that wrote it; the rest when it is ended.

    Who still holds it after that (a logging handler made meanwhile) writes to `stream` itself.
    """

    def __init__(self, stream: TextIO, show: Callable[[str], None]) -> None:
        super().__init__()
        self.stream = stream
        self._show = show
        self._rest = ""
        self._has_ended = False
        self._lock = threading.Lock()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute in the base class
        return self.stream.encoding

    def fileno(self) -> int:
        return self.stream.fileno()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            if self._has_ended:
                return self.stream.write(text)
            *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._show(line)
        return len(text)

    def flush(self) -> None:
        if self._has_ended:
            self.stream.flush()

    def end(self) -> None:
        """Passes on a line without an end; from now on `stream` is written to."""
        with self._lock:
            self._has_ended = True
            rest, self._rest = self._rest, ""
        if rest:
            self._show(rest)
