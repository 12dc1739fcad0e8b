"""`metrics.csv`: one row a call, a column `step` and one for each name; cells not in that call are empty."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from drivetrain.telemetry.sinks.table import SinkRequest


def open_sink(request: SinkRequest) -> CsvSink:
    return CsvSink(request.run_dir.metrics, start_step=request.start_step)


class CsvSink:
    """Appends rows to `path`. A new name rewrites the file with one more column, in one atomic replacement.

    Rows of an earlier start that lie after `start_step` are removed: the steps are done anew, and a reader
    must not find them twice. So is a row that a killed process left torn.

    Raises:
        OSError: the file cannot be read or written.
    """

    def __init__(self, path: Path, *, start_step: int = 0) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._columns, rows = _read(path)
        kept = [row for row in rows if int(row[0]) <= start_step]
        self._replace(self._columns, kept)
        self._file = path.open("a", encoding="utf-8", newline="")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One row, flushed. The name "step" is the column's own and is refused as a metric."""
        if "step" in values:
            raise ValueError('a metric cannot be called "step": that is the row\'s own column')
        added = [name for name in values if name not in self._columns]
        if added:
            self._widen(added)
        cells = [repr(float(values[name])) if name in values else "" for name in self._columns[1:]]
        # One write of a whole row: a row is torn only where the disk or the process ends in the middle of it.
        self._file.write(_text([[str(step), *cells]]))
        self._file.flush()

    def text(self, step: int, name: str, text: str) -> None:
        """A table of numbers has no place for texts; they stand in the events."""

    def close(self) -> None:
        self._file.close()

    def _widen(self, added: list[str]) -> None:
        self._file.close()
        columns, rows = _read(self._path)
        self._columns = [*columns, *added]
        self._replace(self._columns, ([*row, *[""] * len(added)] for row in rows))
        self._file = self._path.open("a", encoding="utf-8", newline="")

    def _replace(self, columns: list[str], rows: Iterable[list[str]]) -> None:
        temporary = self._path.with_name(f".{self._path.name}.new")
        try:
            temporary.write_text(_text([columns, *rows]), encoding="utf-8", newline="")
            temporary.replace(self._path)
        finally:
            temporary.unlink(missing_ok=True)


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    """Columns and whole rows of `path`; a file that is missing or has no header of ours has none."""
    if not path.exists():
        return ["step"], []
    text = path.read_text(encoding="utf-8", errors="replace")
    table = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    if not table or not table[0] or table[0][0] != "step":
        return ["step"], []
    columns = table[0]
    return columns, [row for row in table[1:] if len(row) == len(columns) and row[0].isdigit()]


def _text(rows: Iterable[list[str]]) -> str:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()
