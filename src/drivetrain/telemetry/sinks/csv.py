"""`metrics.csv`: one row a step, a column `step` and one for each name; cells that nobody gave are empty."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from drivetrain.telemetry.sinks.table import SinkRequest

# A step's training values come some steps after its evaluation; further back the whole file is rewritten.
_TAIL_ROWS: Final = 256


def open_sink(request: SinkRequest) -> CsvSink:
    return CsvSink(request.run_dir.metrics, start_step=request.start_step)


class CsvSink:
    """Keeps one row a step in `path`, in the order of steps, whatever the order that values come in.

    A new step is appended. What comes for a step that has a row, or between two, is put there: the last rows
    are held in memory and written over in one write. A new name rewrites the file with one more column, in
    one atomic replacement.

    Rows of an earlier start that lie after `start_step` are removed: the steps are done anew, and a reader
    must not find them twice. So is a row that a killed process left torn.

    Raises:
        OSError: the file cannot be read or written.
    """

    def __init__(self, path: Path, *, start_step: int = 0) -> None:
        self._path = path
        self._columns: list[str] = []
        self._tail: dict[int, dict[str, str]] = {}
        self._tail_start = 0
        self._size = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        columns, rows = _read(path)
        self._rewrite(columns, {step: row for step, row in rows.items() if step <= start_step})

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Written before this returns. The name "step" is the column's own and is refused as a metric."""
        if "step" in values:
            raise ValueError('a metric cannot be called "step": that is the row\'s own column')
        added = [name for name in values if name not in self._columns]
        is_before_tail = bool(self._tail) and step < min(self._tail) and self._tail_start > self._header_bytes
        if added or is_before_tail:
            os.close(self._file)
            columns, rows = _read(self._path)
            rows[step] = rows.get(step, {}) | _cells(values)
            self._rewrite([*columns, *added], rows)
        elif not self._tail or step > max(self._tail):
            self._append(step, _cells(values))
        else:
            self._insert(step, _cells(values))

    def text(self, step: int, name: str, text: str) -> None:
        """A table of numbers has no place for texts; they stand in the events."""

    def close(self) -> None:
        os.close(self._file)

    def _append(self, step: int, cells: dict[str, str]) -> None:
        self._write(self._row(step, cells), at=self._size)
        self._tail[step] = cells
        if len(self._tail) >= 2 * _TAIL_ROWS:
            for old in list(self._tail)[:_TAIL_ROWS]:
                self._tail_start += len(self._row(old, self._tail.pop(old)))

    def _insert(self, step: int, cells: dict[str, str]) -> None:
        self._tail[step] = self._tail.get(step, {}) | cells
        self._tail = dict(sorted(self._tail.items()))
        at = self._tail_start
        later = b""
        for other, row in self._tail.items():
            text = self._row(other, row)
            if other < step:
                at += len(text)
            else:
                later += text
        self._write(later, at=at)

    def _write(self, text: bytes, *, at: int) -> None:
        """Over what stands from `at` on, which may be longer where a value replaces another."""
        written = 0
        while written < len(text):
            written += os.pwrite(self._file, text[written:], at + written)
        if at + written < self._size:
            os.ftruncate(self._file, at + written)
        self._size = at + written

    def _rewrite(self, columns: list[str], rows: Mapping[int, dict[str, str]]) -> None:
        self._columns = columns
        header = _text([columns])
        ordered = dict(sorted(rows.items()))
        texts = [self._row(step, cells) for step, cells in ordered.items()]
        num_before_tail = max(len(texts) - _TAIL_ROWS, 0)
        temporary = self._path.with_name(f".{self._path.name}.new")
        try:
            temporary.write_bytes(header + b"".join(texts))
            temporary.replace(self._path)
        finally:
            temporary.unlink(missing_ok=True)
        self._file = os.open(self._path, os.O_RDWR)
        self._tail = dict(list(ordered.items())[-_TAIL_ROWS:])
        self._header_bytes = len(header)
        self._tail_start = len(header) + sum(map(len, texts[:num_before_tail]))
        self._size = len(header) + sum(map(len, texts))

    def _row(self, step: int, cells: Mapping[str, str]) -> bytes:
        return _text([[str(step), *(cells.get(name, "") for name in self._columns[1:])]])


def _cells(values: Mapping[str, float]) -> dict[str, str]:
    return {name: repr(float(value)) for name, value in values.items()}


def _read(path: Path) -> tuple[list[str], dict[int, dict[str, str]]]:
    """Columns, and the cells of each step by name, of `path`; a file that is missing or has no header of ours
    has none. Several rows of a step are taken together, and of two values the later.
    """
    if not path.exists():
        return ["step"], {}
    text = path.read_text(encoding="utf-8", errors="replace")
    table = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    if not table or not table[0] or table[0][0] != "step":
        return ["step"], {}
    columns = table[0]
    rows: dict[int, dict[str, str]] = {}
    for row in table[1:]:
        if len(row) == len(columns) and row[0].isdigit():
            cells = {name: cell for name, cell in zip(columns[1:], row[1:], strict=True) if cell}
            rows[int(row[0])] = rows.get(int(row[0]), {}) | cells
    return columns, rows


def _text(rows: Iterable[list[str]]) -> bytes:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode("utf-8")
