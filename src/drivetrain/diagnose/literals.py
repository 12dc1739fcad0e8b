"""The plain texts one of which a match of a regular expression must contain, read from the expression."""

from __future__ import annotations

import re

MIN_CHARS = 4
_GROUP_OPEN = re.compile(r"\(\?(?:P<\w+>|:)|\((?!\?)")
_LOOK_AROUND = re.compile(r"\(\?(?:=|!|<=|<!)")
_QUANTIFIER = re.compile(r"([*?]|\+|\{(\d*),?\d*\})\??")
_COMMON = frozenset(
    {
        "nccl",
        "info",
        "warn",
        "rank",
        "ranks",
        "loss",
        "step",
        "steps",
        "time",
        "data",
        "torch",
        "error",
        "failed",
        "model",
        "iter",
        "batch",
        "epoch",
        "memory",
        "node",
        "host",
        "cuda",
        "nvidia",
        "device",
        "train",
        "worker",
        "process",
        "total",
        "used",
        "file",
        "line",
        "object",
        "tensor",
        "limit",
    }
)
"""Words that normal logs are full of."""
_ESCAPES_OF_TEXT = set(".^$*+?{}[]\\|()/-'\"<>#:;,!@%&=~` ")


def required_texts(pattern: str) -> tuple[str, ...]:
    """Texts (lower case, of at least `MIN_CHARS` characters) of which every match of `pattern` contains one.

    Of what all matches share, the longest run of plain characters is chosen, or of a group all alternatives.
    Text in character classes, look-arounds and before `*`, `?` and `{0,` is not
    counted, as a match may lack it.

    Raises:
        ValueError: there are no such texts.
    """
    found = _Reader(pattern).alternatives()
    if found is None:
        raise ValueError(
            f"pattern {pattern!r} needs {MIN_CHARS} plain characters in a row that every match contains,"
            " so that large logs can be searched for it quickly"
        )
    return tuple(sorted(found))


class _Reader:
    """A recursive descent through the expression, which `re` has accepted before."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def alternatives(self) -> frozenset[str] | None:
        """Up to the closing bracket or the end: the texts of all alternatives, or None where one has none."""
        found: frozenset[str] | None = frozenset()
        while True:
            texts = self._sequence()
            found = None if found is None or texts is None else found | texts
            if self._next() != "|":
                return found
            self._at += 1

    def _sequence(self) -> frozenset[str] | None:
        best: frozenset[str] | None = None
        run = ""
        while (char := self._next()) not in ("", "|", ")"):
            start = self._at
            texts = self._group() if char == "(" else None
            text = self._text() if char != "(" else ""
            least, is_repeated = self._times()
            if text and least:
                run += text
                if not is_repeated:
                    continue
            best, run = _better(best, frozenset({run.lower()})), ""
            if least and texts is not None:
                best = _better(best, texts)
            assert self._at > start
        return _better(best, frozenset({run.lower()}))

    def _next(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _text(self) -> str:
        """Reads one item that is no group; its text, or "" where it is a class, a dot or an anchor."""
        char = self._next()
        if char == "\\":
            escaped = self._pattern[self._at + 1 : self._at + 2]
            self._at += 2
            return escaped if escaped in _ESCAPES_OF_TEXT else ""
        if char == "[":
            end = self._at + 2 if self._pattern[self._at + 1] != "^" else self._at + 3
            while self._pattern[end : end + 1] not in ("]", ""):
                end += 2 if self._pattern[end] == "\\" else 1
            self._at = end + 1
            return ""
        self._at += 1
        return "" if char in ".^$" else char

    def _group(self) -> frozenset[str] | None:
        pattern, start = self._pattern, self._at
        opening = _GROUP_OPEN.match(pattern, start)
        looks = _LOOK_AROUND.match(pattern, start)
        if opening is None and looks is None:
            raise ValueError(
                f"pattern {pattern!r}: only plain, named and (?:…) groups and look-arounds are read"
            )
        self._at = (opening or looks).end()  # type: ignore[union-attr]  # one of both matched
        texts = self.alternatives()
        self._at += 1
        return texts if opening is not None else None

    def _times(self) -> tuple[bool, bool]:
        """Reads a quantifier, if any: must what stands before it be there, and may it be repeated?

        After "a+" the text goes on, but what follows is not next to it for sure.
        """
        match = _QUANTIFIER.match(self._pattern, self._at)
        if match is None:
            return True, False
        self._at = match.end()
        may_be_absent = match[1][0] in "*?" or (match[1][0] == "{" and int(match[2] or 0) == 0)
        return not may_be_absent, True


def _better(one: frozenset[str] | None, other: frozenset[str]) -> frozenset[str] | None:
    """The texts that fewer lines will contain: those whose most common is rarer."""
    if not other or min(map(len, other)) < MIN_CHARS:
        return one
    return other if one is None or min(map(_rarity, other)) > min(map(_rarity, one)) else one


def _rarity(text: str) -> int:
    """Longer texts are rarer, and words of every log are less rare than anything else."""
    return 1 if _COMMON.issuperset(re.findall(r"[^ :=_]+", text)) else len(text)
