"""Reads logs of any size once, in bounded memory, and gives the lines that hold one of some texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import BinaryIO

from drivetrain.diagnose.lines import MAX_LINE_CHARS, Line, Place, has_rank_prefix, read_line
from drivetrain.diagnose.prefilter import Prefilter

CHUNK_BYTES = 1 << 22
_NUM_AROUND = 8
"""So many lines before and after a found one can be looked at."""
_MAX_CARRIED_BYTES = 1 << 20
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\^_])")
_NUMBERED = re.compile(r"\d+: ")
_IN_FAILURE = re.compile(r"\s*(?:exitcode|traceback|error_file)\s*: ")
_FAILED_RANK = re.compile(r"\s*rank\s*: (\d{1,6}) \(local_rank: \d+\)")
_FAILED_HOST = re.compile(r"\s*host\s*: (\S+)")
_UTF16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A log to read. `rank` is given only where the writer is known for sure, as in a run's own folder."""

    name: str
    open: Callable[[], BinaryIO]
    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """A line with one of the texts, and who asked for the text.

    `raw` is the line as it stands. `line` takes it apart and `following` reads on (the texts of the next
    lines of the same writer): both cost more than most lines are worth, and are for before the next line is
    asked for.
    """

    raw: str
    owners: tuple[int, ...]
    read: Callable[[], Line]
    read_on: Callable[[Line], tuple[str, ...]]

    @cached_property
    def line(self) -> Line:
        return self.read()

    @cached_property
    def following(self) -> tuple[str, ...]:
        return self.read_on(self.line)


@dataclass(kw_only=True)
class Extent:
    """How much was read."""

    num_bytes: int = 0
    num_lines: int = 0


def scan(source: Source, prefilter: Prefilter, *, file_order: int, extent: Extent) -> Iterator[Found]:
    """The lines of `source` that hold a text of `prefilter`, in order; counts what it reads into `extent`.

    A progress bar's redrawings ("\\r") are pieces of their own within one line.

    Raises:
        OSError: it cannot be read.
    """
    with source.open() as file:
        head = file.read(CHUNK_BYTES)
        encoding = _UTF16.get(head[:2])
        reader = _Reader(source, prefilter, file_order)
        prefilter.tune(_plain(head, encoding).lower())
        block = head
        while block:
            extent.num_bytes += len(block)
            yield from reader.add(_plain(block, encoding))
            block = file.read(CHUNK_BYTES)
        yield from reader.end()
        extent.num_lines += reader.num_lines


def _plain(block: bytes, encoding: str | None) -> bytes:
    if encoding is not None:  # a Windows shell's redirection; a character cut in two at a border is lost
        block = block.decode(encoding, errors="replace").encode(errors="replace")
    return _ANSI.sub(b"", block) if b"\x1b" in block else block


class _Reader:
    """Joins blocks at line ends. The last lines of a block wait for those that follow them."""

    def __init__(self, source: Source, prefilter: Prefilter, file_order: int) -> None:
        self._source = source
        self._prefilter = prefilter
        self._file_order = file_order
        self._carried = b""
        self._first_number = 1  # of the first line in `_carried`
        self._done = 0  # bytes of `_carried` whose lines have been given
        self.num_lines = 0

    def add(self, block: bytes) -> Iterator[Found]:
        text = self._carried + block
        end = text.rfind(b"\n") + 1
        for _ in range(_NUM_AROUND):
            previous = text.rfind(b"\n", 0, max(end - 1, 0)) + 1
            if previous <= self._done:
                break
            end = previous
        if end <= self._done and len(text) - self._done < _MAX_CARRIED_BYTES:
            self._carried = text
            return
        if end <= self._done or len(text) - end > _MAX_CARRIED_BYTES:
            end = len(text)  # one enormous line: give it in pieces
        yield from self._found(text, end)
        self._carry(text, end)

    def end(self) -> Iterator[Found]:
        yield from self._found(self._carried, len(self._carried))
        self.num_lines = self._first_number - 1 + self._carried.count(b"\n")
        self.num_lines += bool(self._carried) and not self._carried.endswith(b"\n")

    def _carry(self, text: bytes, end: int) -> None:
        start = end
        for _ in range(_NUM_AROUND):
            start = text.rfind(b"\n", 0, max(start - 1, 0)) + 1
        start = max(start, end - _MAX_CARRIED_BYTES)
        self._first_number += text.count(b"\n", 0, start)
        self._carried = text[start:]
        self._done = end - start

    def _found(self, text: bytes, end: int) -> Iterator[Found]:
        counted, number = 0, self._first_number
        piece: tuple[int, int] | None = None
        owners: dict[int, None] = {}
        # A text that began before `_done` was given with the block before; one that begins in front of `end`
        # may reach behind it.
        base = max(self._done - MAX_LINE_CHARS, 0)
        for relative, found in self._prefilter.find(text[base:].lower()):
            position = base + relative
            if not self._done <= position < end:
                continue
            if piece is not None and position < piece[1]:
                owners.update(dict.fromkeys(found))
                continue
            if piece is not None:
                yield self._at(text, piece, number, tuple(owners))
            piece = _piece(text, position)
            number += text.count(b"\n", counted, piece[0])
            counted = max(counted, piece[0])
            owners = dict.fromkeys(found)
        if piece is not None:
            yield self._at(text, piece, number, tuple(owners))

    def _at(self, text: bytes, piece: tuple[int, int], number: int, owners: tuple[int, ...]) -> Found:
        raw = _decode(text[piece[0] : piece[1]])

        def read() -> Line:
            place = Place(file=self._source.name, number=number, file_order=self._file_order)
            line = read_line(raw, place, rank=self._source.rank)
            if _IN_FAILURE.match(line.text):
                return _with_rank_of_the_failure(line, _before(text, piece[0], 8))
            return (
                line
                if line.rank is not None
                else _with_rank_of_the_line_before(line, _before(text, piece[0], 1))
            )

        return Found(raw=raw, owners=owners, read=read, read_on=lambda line: _following(text, piece[1], line))


def _with_rank_of_the_failure(line: Line, before: list[Line]) -> Line:
    """torch's elastic agent lists failures as blocks: rank, exit code and signal are lines of their own."""
    for number, earlier in enumerate(before):
        if match := _FAILED_RANK.match(earlier.text):
            hosts = [host[1] for item in before if (host := _FAILED_HOST.match(item.text))]
            return replace(
                line,
                rank=int(match[1]),
                node=hosts[0] if hosts else line.node,
                is_first_failure=any("Root Cause" in item.text for item in before[number : number + 6]),
            )
    return line


def _with_rank_of_the_line_before(line: Line, before: list[Line]) -> Line:
    """The last line of a traceback is sometimes printed without the prefix that its frames have."""
    for earlier in before:
        if earlier.rank is not None and has_rank_prefix(earlier) and earlier.text.startswith(" "):
            return replace(line, rank=earlier.rank)
    return line


def _before(text: bytes, start: int, count: int) -> list[Line]:
    """The `count` lines before `start`, the nearest first."""
    found: list[Line] = []
    while len(found) < count and start > 0:
        previous = text.rfind(b"\n", 0, start - 1) + 1
        raw = _decode(text[max(previous, start - MAX_LINE_CHARS) : start - 1])
        found.append(read_line(raw, Place(file="", number=0)))
        start = previous
    return found


def _piece(text: bytes, position: int) -> tuple[int, int]:
    """The borders of the line, or of the progress bar's redrawing, around `position`; cut where enormous."""
    lowest = max(position - MAX_LINE_CHARS // 2, 0)
    start = max(text.rfind(b"\n", lowest, position), text.rfind(b"\r", lowest, position)) + 1 or lowest
    highest = start + MAX_LINE_CHARS
    ends = [at for mark in (b"\n", b"\r") if (at := text.find(mark, position, highest)) >= 0]
    return start, min(ends, default=min(highest, len(text)))


def _following(text: bytes, end: int, line: Line) -> tuple[str, ...]:
    found: list[str] = []
    start = end
    while len(found) < _NUM_AROUND and start < len(text):
        start += 1
        stop = text.find(b"\n", start)
        stop = len(text) if stop < 0 else stop
        read = read_line(_decode(text[start : min(stop, start + MAX_LINE_CHARS)]), line.place, rank=line.rank)
        if read.rank == line.rank:
            found.append(read.text)
        elif _NUMBERED.match(read.shown) and not _NUMBERED.match(line.shown):
            found.append(read.shown)  # a list's item, and not srun's prefix
        start = stop
    return tuple(found)


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
