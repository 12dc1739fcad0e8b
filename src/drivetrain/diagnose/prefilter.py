"""Finds a few hundred texts in gigabytes of bytes: every four bytes are looked up in a table, by numpy.

One table lookup a byte costs the same for ten texts as for a thousand, where an alternation of regular
expressions would slow down with each. What the table lets through is compared byte by byte.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_GRAM = 4
ONE_IN = 256
_NOWHERE, _SAMPLED, _WANTED = 0, 1, 2  # in the table: no text, one that was seen enough, any other
_TABLE_BITS = 18
_MULTIPLIER = np.uint32(2654435761)  # Knuth's multiplicative hash: 2^32 divided by the golden ratio
_SHIFT = np.uint32(32 - _TABLE_BITS)


class Prefilter:
    """Positions of `texts` (lower case, each at least four bytes long) in chunks of lower-case bytes.

    A text may be meant for several owners; `texts` maps it to them.
    """

    def __init__(self, texts: Mapping[bytes, tuple[int, ...]]) -> None:
        self._texts = texts
        self._satiated: set[int] = set()
        self._enough: frozenset[bytes] = frozenset()
        self._by_gram: dict[int, list[tuple[bytes, int]]] = {}
        self._table: NDArray[np.uint8] = np.zeros(1 << _TABLE_BITS, dtype=np.uint8)
        self.tune(b"")

    def tune(self, sample: bytes) -> None:
        """Chooses of each text the four bytes that are rarest in `sample`, so that little is let through."""
        counts = np.zeros(1 << _TABLE_BITS, dtype=np.int64)
        for hashes, _ in _hashes(sample):
            counts += np.bincount(hashes, minlength=counts.size)
        by_gram: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
        for text in self._texts:
            grams = [int.from_bytes(text[at : at + _GRAM], "little") for at in range(len(text) - _GRAM + 1)]
            rarity = counts[_hash(np.array(grams, dtype=np.uint32))]
            at = int(np.argmin(rarity))
            by_gram[grams[at]].append((text, at))
        self._by_gram = dict(by_gram)
        self._fill_table()

    def satiate(self, owner: int) -> None:
        """`owner` has seen enough: of texts that only such owners want, one in 256 is given from now on."""
        self._satiated.add(owner)
        self._enough = frozenset(
            text for text, owners in self._texts.items() if self._satiated.issuperset(owners)
        )
        self._fill_table()

    def find(self, chunk: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Where each text stands in `chunk`, with its owners; by rising position."""
        grams = self._by_gram
        sampled = (
            self._enough
        )  # the table thins out these; what is added while this chunk is read is left out
        for position in _positions(chunk, self._table):
            gram = int.from_bytes(chunk[position : position + _GRAM], "little")
            for text, at in grams.get(gram, ()):
                start = position - at
                if text in self._enough and text not in sampled:
                    continue
                if start >= 0 and chunk.startswith(text, start):
                    yield start, self._texts[text]

    def _fill_table(self) -> None:
        self._table[:] = _NOWHERE
        for gram, texts in self._by_gram.items():
            wanted = any(text not in self._enough for text, _ in texts)
            place = _hash(np.array([gram], dtype=np.uint32))
            self._table[place] = np.maximum(self._table[place], _WANTED if wanted else _SAMPLED)


def owners_by_text(texts: Iterable[tuple[str, int]]) -> dict[bytes, tuple[int, ...]]:
    """(text, owner) pairs as `Prefilter` wants them."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for text, owner in texts:
        found[text.encode()].append(owner)
    return {text: tuple(owners) for text, owners in found.items()}


def _hash(grams: NDArray[np.uint32]) -> NDArray[Any]:
    return (grams * _MULTIPLIER) >> _SHIFT


def _hashes(chunk: bytes) -> Iterator[tuple[NDArray[Any], int]]:
    """Hashes of all four-byte pieces, in four turns: those that begin at offset 0, 4, …, then 1, 5, …"""
    for offset in range(_GRAM):
        count = (len(chunk) - offset) // _GRAM
        if count > 0:
            yield _hash(np.frombuffer(chunk, dtype="<u4", count=count, offset=offset)), offset


def _positions(chunk: bytes, table: NDArray[np.uint8]) -> list[int]:
    found = []
    for hashes, offset in _hashes(chunk):
        marks = table[hashes]
        for mark, step in ((_WANTED, 1), (_SAMPLED, ONE_IN)):
            found.append(np.flatnonzero(marks == mark)[::step] * _GRAM + offset)
    if not found:
        return []
    return [int(position) for position in np.sort(np.concatenate(found))]
