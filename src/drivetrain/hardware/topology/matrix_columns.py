"""Which device each column is, and which cells of a row stand under the column they belong to.

A cell can only be wrong silently if it slips to another column, so each row is held against its X, which
stands under its own name. What does not fit is dropped and said; the other half of the matrix often has it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from drivetrain.hardware.topology.matrix_cells import SELF, Row
from drivetrain.hardware.topology.matrix_tables import Table


@dataclass(frozen=True, kw_only=True)
class Columns:
    """`labels`: by column, None where the device is not known; `cells`: (row's, column's) label → code, of
    cells that can be trusted; `problems`: a sentence for each row or column that cannot."""

    labels: tuple[str | None, ...]
    cells: dict[tuple[str, str], str]
    problems: tuple[str, ...]


def place_cells(table: Table) -> Columns:
    """Names the columns and puts each trustworthy cell under its two devices."""
    problems = [f"row {label} stands there twice, differently" for label in sorted(table.unclear)]
    rows = [row for label, row in table.rows.items() if label not in table.unclear]
    labels = _labels(table, rows)
    width = len(labels)
    labels, rows = _settle(labels, rows, problems)
    cells = {}
    last = rows[-1] if rows else None
    for row in rows:
        num_good = _trusted(row, labels, width, is_last=row is last, table=table)
        if num_good < len(row.cells) and num_good < width:
            problems.append(f"row {row.label}: only the first {num_good} cells stand where they belong")
        is_cut = len(row.cells) < width and not row.tail.strip()
        if is_cut and re.fullmatch(r"NV\d", row.cells[-1] or "") and num_good == len(row.cells):
            num_good -= 1  # NV1 at a cut may be the half of NV12
        for column, code in list(zip(labels, row.cells, strict=False))[:num_good]:
            if column is not None and code is not None:
                cells[(row.label, column)] = code
    num_nameless = labels.count(None)
    if num_nameless:
        problems.append(
            f"{num_nameless} column{'s have' if num_nameless > 1 else ' has'} no readable heading"
        )
    return Columns(labels=tuple(labels), cells=cells, problems=tuple(problems))


def _labels(table: Table, rows: list[Row]) -> list[str | None]:
    """The heading's labels, or as many Nones as the rows have cells where it is missing or does not fit."""
    widths = Counter(len(_without_noise(row)) for row in rows)
    usual = max(widths, key=lambda width: (widths[width], width), default=0)
    if table.heading is None:
        return _from_rows(rows, max(widths, default=0))
    named = list(table.heading.labels)
    if len(named) > usual == sum(label is not None for label in named):
        named = [label for label in named if label is not None]  # specks between the labels, no columns
    doubled = {label for label, count in Counter(named).items() if count > 1}
    named = _in_order(
        [label if label not in doubled or label == f"GPU{at}" else None for at, label in enumerate(named)]
    )
    if usual != len(named):
        fits = sum(_self_at(row) == _index(named, row.label) for row in rows)
        if 2 * fits < len(rows):  # a heading that lost or gained a cell: the names behind it are shifted
            return _from_rows(rows, usual)
    if usual > len(named) and not table.heading.columns:
        named += [None] * (usual - len(named))
    return named


def _in_order(labels: list[str | None]) -> list[str | None]:
    """GPUs are numbered upwards: a number that is not between its neighbours' is damaged, and one that is
    missing between neighbours two apart is known."""
    numbers = [gpu_number(label) for label in labels]
    checked = list(labels)
    for at, number in enumerate(numbers):
        before = next((n for n in reversed(numbers[:at]) if n is not None), -1)
        after = next((n for n in numbers[at + 1 :] if n is not None), None)
        if (
            number is not None
            and number != at
            and (number < before or (after is not None and number > after))
        ):
            checked[at] = None
        if checked[at] is None and before == at - 1 and after == at + 1:
            checked[at] = f"GPU{at}"
    return checked


def _from_rows(rows: list[Row], width: int) -> list[str | None]:
    """Without a heading: a row's X names its column; columns up to the last NVLink are GPUs, in order."""
    last_nvlink = max(
        (at for row in rows for at, code in enumerate(row.cells) if code and code.startswith("NV")),
        default=-1,
    )
    labels: list[str | None] = [f"GPU{at}" if at <= last_nvlink else None for at in range(width)]
    for row in rows:
        at = _self_at(row)
        if at is not None and at < width and labels[at] is None and row.label not in labels:
            labels[at] = row.label
    return labels


def _settle(
    labels: list[str | None], rows: list[Row], problems: list[str]
) -> tuple[list[str | None], list[Row]]:
    """Names that a row's X and the numbering agree on stand against a damaged one; other rows are dropped."""
    kept = []
    for row in rows:
        at = _self_at(row)
        own = _index(labels, row.label)
        if row.cells.count(SELF) > 1:
            problems.append(f"row {row.label} has several X")
            continue
        if own is None and at is not None and at < len(labels):
            is_numbered = row.label == f"GPU{at}" and labels[at] != f"GPU{at}"
            if labels[at] is None or is_numbered:
                labels[at] = row.label
                own = at
        if own is None:
            problems.append(f"row {row.label} is not in the heading")
        elif at is not None and at != own:
            problems.append(
                f"row {row.label} has its X under {labels[at] if at < len(labels) else 'nothing'}"
            )
        else:
            kept.append(row)
    # A later row may have renamed an earlier one's column.
    return labels, [row for row in kept if _self_at(row) in (None, _index(labels, row.label))]


def _trusted(row: Row, labels: list[str | None], width: int, *, is_last: bool, table: Table) -> int:
    """How many of the row's first cells certainly stand under their columns."""
    own = _index(labels, row.label)
    if own is None:
        return 0
    at = _self_at(row)
    cells = _without_noise(row)
    if len(cells) == width:
        is_broken = at is None and cells[own] is not None  # a link where the X should be
        return 0 if is_broken else width
    up_to_self = 0 if at is None else own + 1
    if len(cells) > width or row.tail.strip():
        return up_to_self
    # Cut off behind its last cell: so it is in a paste cut at a column or at its end, or a cell is missing.
    has_affinity = table.heading is not None and bool(table.heading.columns)
    is_nic = not row.label.startswith("GPU")
    if at is None:
        return len(cells) if len(cells) <= own and (has_affinity or is_last or is_nic) else 0
    others = {len(_without_noise(other)) for other in table.rows.values()}
    return len(cells) if has_affinity or is_last or len(others) == 1 else up_to_self


def _without_noise(row: Row) -> tuple[str | None, ...]:
    """The cells without words that stand behind the last of them (a note at the end of the line)."""
    cells = list(row.cells)
    while len(cells) > 1 and cells[-1] is None and cells[-2] is None:
        cells.pop()
    return tuple(cells)


def _self_at(row: Row) -> int | None:
    return row.cells.index(SELF) if SELF in row.cells else None


def _index(labels: list[str | None], label: str) -> int | None:
    return labels.index(label) if label in labels else None


def gpu_number(label: str | None) -> int | None:
    """7 for `GPU7`; None for what is no GPU."""
    return int(label[3:]) if label is not None and re.fullmatch(r"GPU\d{1,3}", label) else None
