"""Appends one rank's events to its file, without ever being the reason that training stops.

The calling thread only stamps a step's event and puts it into a queue; a thread turns it into text and
writes it within half a second. Everything that is not written once a step reaches the file before `write`
returns, so that it survives a SIGKILL. Text goes to the descriptor in whole lines and is never buffered in
user space: a forked child (a DataLoader worker) inherits nothing that it could flush a second time.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drivetrain.telemetry.events import ClusterStep, Event, Header, MessageEvent, StepEvent
from drivetrain.telemetry.json_lines import to_line

_log = logging.getLogger(__name__)

# Written every step; all others are rare and worth a system call at once.
_EVERY_STEP: Final = (StepEvent, ClusterStep)
_CLOSE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The two clocks that stamp events, in seconds."""

    mono_s: Callable[[], float] = time.monotonic
    wall_s: Callable[[], float] = time.time


class EventWriter:
    """Appends events to `path`, starting with `header`; its rank stamps every event.

    A line that a killed process left torn is ended first. Where the file cannot be written (disk full,
    quota), events are counted as lost and training goes on: lines already written stay whole, one warning is
    logged, writing is tried again at each flush, and the file then says how many events are missing.

    Events must not be changed after they were given to `write`: they are turned into text later.

    Args:
        flush_interval_s: the longest that a step's event waits for the disk.
        max_buffered: events held while a disk does not answer; more are counted as lost.

    Raises:
        OSError: `path` cannot be opened for appending.
    """

    def __init__(
        self,
        path: Path,
        header: Header,
        *,
        clock: Clock | None = None,
        flush_interval_s: float = 0.25,
        max_buffered: int = 20_000,
    ) -> None:
        self.path = path
        self._clock = clock or Clock()
        self._flush_interval_s = flush_interval_s
        self._max_buffered = max_buffered
        self._rank = header.rank
        self._pid = os.getpid()
        self._buffer: deque[tuple[Event, float, float]] = deque()
        # Re-entrant: a signal handler may write while the same thread is writing.
        self._lock = threading.RLock()
        self._num_lost = 0
        self._num_unreported = 0
        self._failure: str | None = None
        self._closed = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._size = os.fstat(self._file).st_size
        self._is_torn = self._size > 0 and os.pread(self._file, 1, self._size - 1) != b"\n"
        self._owed_header: bytes | None = self._text(header, self._clock.mono_s(), self._clock.wall_s())
        self.flush()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._flush_by_time, name="event-writer", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def num_lost(self) -> int:
        """Events that did not reach the file."""
        return self._num_lost

    def write(self, event: Event) -> None:
        """Stamps `event` and sees to it that it is written: a step's soon, any other before this returns.

        Raises:
            RuntimeError: called in a forked child, whose events belong to no file.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"{self.path} belongs to process {self._pid}; a forked child cannot write to it"
            )
        if self._closed or len(self._buffer) >= self._max_buffered:
            self._lose(1, "written after close()" if self._closed else "the disk does not keep up")
            return
        self._buffer.append((event, self._clock.mono_s(), self._clock.wall_s()))
        if not isinstance(event, _EVERY_STEP):
            self.flush()

    def flush(self) -> None:
        """Writes all that waits, for whoever wants to read the file now; does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._write_waiting()

    def close(self) -> None:
        """Writes all that waits and closes the file. Does nothing the second time or in a forked child."""
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        self._stop.set()
        self._thread.join(timeout=_CLOSE_TIMEOUT_S)
        atexit.unregister(self.close)
        if not self._lock.acquire(timeout=_CLOSE_TIMEOUT_S):
            _log.warning("%s: the disk did not answer; the last events may be missing", self.path)
            return
        try:
            self._write_waiting()
            os.close(self._file)
        finally:
            self._lock.release()
        if self._num_lost:
            _log.warning("%s: %s missing (%s)", self.path, _events(self._num_lost), self._failure)

    def _flush_by_time(self) -> None:
        while not self._stop.wait(self._flush_interval_s):
            if self._buffer:
                self.flush()

    def _write_waiting(self) -> None:
        lines: list[bytes] = []
        while self._buffer:
            event, mono_s, wall_s = self._buffer.popleft()
            try:
                lines.append(self._text(event, mono_s, wall_s))
            except TypeError as error:
                self._lose(1, str(error))
        if self._owed_header is not None and self._append([self._owed_header]) == 1:
            self._owed_header = None
        if not lines:
            return
        if self._owed_header is not None:
            self._lose(len(lines), None)
            return
        if self._num_unreported and self._append([self._loss_line()]) == 1:
            self._num_unreported = 0
        self._lose(len(lines) - self._append(lines), None)

    def _append(self, lines: list[bytes]) -> int:
        """Appends `lines`; returns how many stand whole in the file. A torn one is cut off again."""
        data = memoryview(b"".join(lines))
        written = 0
        try:
            if self._is_torn:
                self._size += os.write(self._file, b"\n")
                self._is_torn = False
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError as error:
            self._note_failure(error.strerror or str(error))
            text = bytes(data[:written])
            whole = text.rfind(b"\n") + 1
            self._size += whole
            if whole < written:
                self._cut_to(self._size)
            return text.count(b"\n")
        self._size += written
        return len(lines)

    def _cut_to(self, size: int) -> None:
        try:
            os.ftruncate(self._file, size)
        except OSError:
            self._is_torn = True  # the next line starts on a line of its own; readers skip the torn one

    def _text(self, event: Event, mono_s: float, wall_s: float) -> bytes:
        return to_line(event, rank=self._rank, mono_s=mono_s, wall_s=wall_s).encode("ascii")

    def _loss_line(self) -> bytes:
        text = f"before this: {_events(self._num_unreported)} missing: {self._failure}"
        message = MessageEvent(level="warning", text=text)
        return self._text(message, self._clock.mono_s(), self._clock.wall_s())

    def _lose(self, count: int, reason: str | None) -> None:
        if count and reason is not None:
            self._note_failure(reason)
        self._num_lost += count
        self._num_unreported += count

    def _note_failure(self, reason: str) -> None:
        if self._failure is None:
            _log.warning("%s: events are being lost (%s); training goes on", self.path, reason)
        self._failure = reason


def _events(count: int) -> str:
    return "1 event is" if count == 1 else f"{count} events are"
