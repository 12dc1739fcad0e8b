"""Reads events back: a finished file, or all ranks' files while they grow."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import EVENT_TYPES, ClusterStep, Event, StepEvent
from drivetrain.telemetry.json_lines import from_line

_CHUNK_BYTES: Final = 1 << 18
_LONGEST_LINE_BYTES: Final = 4 << 20
_DRAIN_TIMEOUT_S: Final = 5.0


def read_events(
    path: Path, *, kinds: Collection[type[Event]] | None = None, steps_from_byte: int = 0
) -> Iterator[Event]:
    """The events of one rank's file in the order written; with `kinds`, only those, the others left unparsed.
    So are the two kinds that come every step as far as they stand before `steps_from_byte`: parsing takes
    25 µs a line, leaving out a fiftieth of that.

    Torn and malformed lines (a killed process, a full disk) and kinds of a later schema are left out.

    Raises:
        OSError: the file cannot be read.
    """
    unwanted = _prefixes(set(EVENT_TYPES.values()) - set(kinds)) if kinds is not None else ()
    every_step = _prefixes((StepEvent, ClusterStep))
    offset = 0
    with path.open("rb") as file:
        for line in file:
            start, offset = offset, offset + len(line)
            if line.startswith(unwanted) or (start < steps_from_byte and line.startswith(every_step)):
                continue
            event = _parse(line)
            if event is not None and (kinds is None or type(event) in kinds):
                yield event


def last_event(path: Path) -> Event | None:
    """The last whole event of one rank's file, read from its end; None where there is none.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _CHUNK_BYTES))
        lines = file.read().splitlines()
    return next((event for line in reversed(lines) if (event := _parse(line)) is not None), None)


def follow(
    source: RunDir | Sequence[Path], stop: threading.Event, *, poll_interval_s: float = 0.1
) -> Iterator[Event]:
    """The events of all ranks as they are written, until `stop` is set and everything written was read.

    Events of one rank come in order; those of different ranks interleave as found.
    """
    tail = EventTail(source)
    deadline_s = None
    while True:
        if deadline_s is None and stop.is_set():
            deadline_s = time.monotonic() + _DRAIN_TIMEOUT_S
        events = tail.poll()
        yield from events
        if deadline_s is not None and (not events or time.monotonic() > deadline_s):
            return
        if not events:
            stop.wait(poll_interval_s)


class EventTail:
    """Reads what was added to the files since the last look, at most 256 KiB a file a look.

    Args:
        source: a run directory, whose ranks' files are found as they appear, or fixed paths, which may not
            exist yet.
        from_end: leave out what stands in the files already (an earlier start of a resumed run).
    """

    def __init__(self, source: RunDir | Sequence[Path], *, from_end: bool = False) -> None:
        self._source = source
        self._files: dict[Path, _TailedFile] = {}
        for path in self._paths() if from_end else ():
            self._files[path] = _TailedFile(path=path, offset=_size(path) or 0)

    def poll(self) -> list[Event]:
        """The events added since the last call; empty where nothing was."""
        events: list[Event] = []
        for path in self._paths():
            file = self._files.setdefault(path, _TailedFile(path=path))
            events.extend(file.read_added())
        return events

    def _paths(self) -> Sequence[Path]:
        if isinstance(self._source, RunDir):
            return sorted(self._source.events.glob("rank-*.jsonl"))
        return self._source


@dataclass
class _TailedFile:
    path: Path
    offset: int = 0
    rest: bytes = b""
    skips_to_newline: bool = field(default=False)

    def read_added(self) -> Iterator[Event]:
        size = _size(self.path)
        if size is None or size == self.offset:
            return
        if size < self.offset:
            # A writer on a full disk cuts off its torn last line, which can only lie in `rest`.
            self.offset, self.rest = size, b""
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            added = file.read(_CHUNK_BYTES)
        self.offset += len(added)
        *lines, self.rest = (self.rest + added).split(b"\n")
        for line in lines:
            if not self.skips_to_newline:
                event = _parse(line)
                if event is not None:
                    yield event
            self.skips_to_newline = False
        if len(self.rest) > _LONGEST_LINE_BYTES:
            self.rest, self.skips_to_newline = b"", True


def _parse(line: bytes) -> Event | None:
    try:
        return from_line(line) if line.strip() else None
    except ValueError:
        return None


def _prefixes(event_types: Collection[type[Event]]) -> tuple[bytes, ...]:
    return tuple(f'{{"kind":"{event_type.kind}",'.encode() for event_type in event_types)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
