"""Text in a terminal's width: a column of labels, hanging indents, and commands that can be copied whole."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Final

LABEL_WIDTH: Final = 10
_NARROWEST: Final = 40


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Lays text out in `width` columns. What has no space to break at (a path) is left whole, and longer."""

    width: int

    def headline(self, text: str) -> list[str]:
        """Text without a label, its further lines indented."""
        first, *rest = self._wrapped(text)
        return [first, *(f"{'':<{LABEL_WIDTH}}{line}" for line in rest)]

    def row(self, label: str, text: str) -> list[str]:
        """`text` beside `label`, its further lines below its first."""
        lines = [part for line in text.split("\n") for part in self._wrapped(line)] or [""]
        return [
            f"{label if index == 0 else '':<{LABEL_WIDTH}}{line}".rstrip() for index, line in enumerate(lines)
        ]

    def commands(self, label: str, offers: list[tuple[str, str]]) -> list[str]:
        """Each command on a line of its own below what it is for, and never broken, to be copied whole."""
        lines: list[str] = []
        for purpose, command in offers:
            lines += self.row("" if lines else label, f"{purpose}:")
            lines.append(f"{'':<{LABEL_WIDTH}}  {command}")
        return lines

    def table(self, label: str, rows: list[tuple[str, str]]) -> list[str]:
        """Things and what they are, side by side where all fit, or else each one's meaning below it."""
        widest = max((len(what) for what, _ in rows), default=0)
        shown = [f"{what:<{widest}}  # {why}" for what, why in rows]
        if any(LABEL_WIDTH + len(line) > self.width for line in shown):
            shown = [line for what, why in rows for line in (what, f"  # {why}")]
        return [f"{label if index == 0 else '':<{LABEL_WIDTH}}{line}" for index, line in enumerate(shown)]

    def _wrapped(self, line: str) -> list[str]:
        # A number stays with its per cent sign.
        return [
            part.replace("\u00a0", " ")
            for part in textwrap.wrap(
                line.replace(" %", "\u00a0%"),
                width=max(self.width, _NARROWEST) - LABEL_WIDTH,
                break_long_words=False,
                break_on_hyphens=False,
            )
        ]
