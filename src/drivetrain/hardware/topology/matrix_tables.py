"""Lines into tables: which heading the rows belong to, where one matrix ends and the next begins."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from drivetrain.hardware.topology.matrix_cells import (
    Heading,
    Row,
    is_only_cells,
    read_cells,
    read_heading,
    read_row,
    split_flattened,
)

_COMMAND = re.compile(r"\btopo\s+(-\S+)(?:\s+(\w+))?")


@dataclass
class Table:
    """Rows under one heading, as they stand. `unclear`: labels of rows that stand there twice, differently.

    `command`: the option of the nvidia-smi line before it (`-m`, `-mp`, `-p2p r`), where there is one.
    """

    heading: Heading | None
    prefix: str
    command: str = ""
    rows: dict[str, Row] = field(default_factory=dict)
    unclear: set[str] = field(default_factory=set)
    is_peer: bool = False
    next_heading: Heading | None = None

    @property
    def labels(self) -> frozenset[str]:
        named = self.heading.labels if self.heading else ()
        return frozenset(label for label in named if label is not None)

    @property
    def is_complete(self) -> bool:
        gpus = {label for label in self.labels if label.startswith("GPU")}
        return bool(gpus) and gpus <= self.rows.keys()


class _Reader:
    def __init__(self) -> None:
        self.tables: list[Table] = []
        self._by_prefix: dict[str, Table] = {}
        self._current: Table | None = None
        self._last_row: str | None = None
        self._command = ""

    def line(self, line: str) -> None:
        command = _COMMAND.search(line)
        if command is not None:
            self._command = " ".join(part for part in command.groups() if part)
        row = read_row(line, self._current.labels if self._current else frozenset())
        if row is not None:
            self._row(row)
            return
        heading = read_heading(line)
        if heading is not None:
            self._heading(heading)
        elif self._current is not None and self._last_row is not None and is_only_cells(line):
            self._wrapped(line)
        else:
            self._last_row = None
            self._wrapped_heading(line)

    def _heading(self, heading: Heading) -> None:
        self._last_row = None
        current = self._by_prefix.get(heading.prefix)
        if current is not None and current.heading is not None and not current.rows:
            if _continues(current.heading, heading):
                current.heading = _joined(current.heading, heading)
                return
            if current.heading == heading:
                return
        if current is not None and current.rows and not current.is_complete and current.heading == heading:
            # The same heading again in the middle (a pager's, say): the next row tells.
            current.next_heading = heading
            self._current = current
            return
        self._open(Table(heading=heading, prefix=heading.prefix, command=self._command))

    def _open(self, table: Table) -> Table:
        self.tables.append(table)
        self._by_prefix[table.prefix] = table
        self._current = table
        self._command = ""
        return table

    def _row(self, row: Row) -> None:
        table = self._by_prefix.get(row.prefix) or self._current
        if table is None:
            table = self._open(Table(heading=None, prefix=row.prefix, command=self._command))
        is_first = row.label in ("GPU0", next(iter(table.rows), ""))
        differs = bool(table.rows) and row.is_peer != table.is_peer
        again = row.label in table.rows
        if differs or (again and (table.next_heading is not None or (is_first and table.is_complete))):
            heading = table.next_heading if table.next_heading else None
            table = self._open(Table(heading=heading, prefix=table.prefix, command=self._command))
            again = False
        if again and table.rows[row.label] != row:
            table.unclear.add(row.label)
        table.is_peer = row.is_peer
        table.rows.setdefault(row.label, row)
        self._current, self._last_row = table, row.label

    def _wrapped(self, line: str) -> None:
        assert self._current is not None
        assert self._last_row is not None
        row = self._current.rows[self._last_row]
        cells, tail, is_peer = read_cells(line)
        if row.tail.strip():  # the cells had ended: only affinities can follow
            if cells:
                self._current.unclear.add(row.label)
            cells, tail = (), f"{row.tail} {line}"
        self._current.rows[row.label] = Row(
            label=row.label,
            cells=row.cells + cells,
            tail=tail,
            prefix=row.prefix,
            is_peer=row.is_peer or is_peer,
        )

    def _wrapped_heading(self, line: str) -> None:
        """The rest of a heading that was wrapped: `NIC4 NIC5 CPU Affinity`, before any row."""
        table = self._current
        if table is None or table.heading is None or table.rows or not re.search(r"Affinity|NIC\d|mlx", line):
            return
        rest = read_heading("GPU0 " + line.strip())
        if rest is not None and None not in rest.labels and not table.heading.columns:
            labels = table.heading.labels + rest.labels[1:]
            table.heading = Heading(labels=labels, columns=rest.columns, prefix=table.heading.prefix)


def _continues(first: Heading, second: Heading) -> bool:
    numbers = [int(label[3:]) for label in first.labels if label and re.fullmatch(r"GPU\d+", label)]
    following = next((label for label in second.labels if label), "")
    return bool(numbers) and following == f"GPU{numbers[-1] + 1}" and not first.columns


def _joined(first: Heading, second: Heading) -> Heading:
    return Heading(labels=first.labels + second.labels, columns=second.columns, prefix=first.prefix)


def read_tables(lines: list[str]) -> list[Table]:
    """Every matrix and peer table of a paste, in order."""
    reader = _Reader()
    for line in lines:
        for part in split_flattened(line):
            reader.line(part)
    return reader.tables
