"""What a terminal shows after a stream of characters: as much of one as the live panel makes use of."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|[\s\S]")


class ScreenModel:
    """An endless sheet. A line that is full wraps with the next character, as terminals do."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        for match in _TOKEN.finditer(text):
            if match.group(2) is not None:
                self._control(match.group(1), match.group(2))
            else:
                self._put(match.group())

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._rows]

    def _control(self, argument: str, letter: str) -> None:
        if letter == "A":
            self._row = max(self._row - int(argument or 1), 0)
        elif letter == "K" and argument == "2":
            self._rows[self._row] = []
        elif letter not in "mhl":
            raise AssertionError(f"this model does not know ESC[{argument}{letter}")

    def _put(self, character: str) -> None:
        if character == "\n":  # the terminal driver adds the carriage return
            self._line_down()
        elif character == "\r":
            self._column = 0
        else:
            if self._column == self._width:
                self._line_down()
            row = self._rows[self._row]
            row.extend(" " * (self._column + 1 - len(row)))
            row[self._column] = character
            self._column += 1

    def _line_down(self) -> None:
        self._row += 1
        self._column = 0
        if self._row == len(self._rows):
            self._rows.append([])
