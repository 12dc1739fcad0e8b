"""Sequences of tokens from a token file: documents packed end to end, cut into pieces of one length."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drivetrain.data.permutation import KeyedPermutation
from drivetrain.data.token_file import open_tokens
from drivetrain.spec.errors import InputError

TokenSplit = Literal["all", "train", "val"]

# Sections of whole documents that are dealt to the splits: so few that finding a token among them costs
# nothing, however many documents there are.
_MOST_SECTIONS = 1024
_SPLIT_KEY = 0x746F6B656E


class TokenDataset:
    """`dataset[i]` is (inputs (L,), targets (L,)), int64: tokens i·L … i·L + L − 1 of the split, and those
    one further on. Only the pages of the file that are read take memory, once for all processes.

    A split is made of whole documents: the file is cut at documents' ends into at most 1,024 sections of
    about one size, and a fixed keyed order says which are held out. So it does not depend on a run's seed,
    and neither moves when the sequence length does.

    Args:
        path: a token file, see `token_file`.
        sequence_length: L.
        split: "val" is about `val_fraction` of the sections, at least one; "train" the others; "all" both.

    Raises:
        InputError: the file cannot be used, or holds fewer than L + 1 tokens (of "val": the split may be
            empty, with length 0).
    """

    def __init__(
        self,
        path: str | Path,
        *,
        sequence_length: int,
        split: TokenSplit = "all",
        val_fraction: float = 0.1,
    ) -> None:
        self.path = str(path)
        opened = open_tokens(path)
        self.header = opened.header
        self.sequence_length = sequence_length
        self.split = split
        starts, ends = _runs(opened.boundaries, split, val_fraction)
        self._starts = starts  # of each run of tokens in the file
        self._ends = np.cumsum(ends - starts)  # of each run in the split
        self._tokens: NDArray[Any] | None = None
        self.num_tokens = int(self._ends[-1]) if len(ends) else 0
        self._length = max(0, (self.num_tokens - 1) // sequence_length)
        if self._length == 0 and split != "val":
            raise InputError(
                f"sequences of {sequence_length} tokens from {path}",
                f"its {'training split' if split == 'train' else 'text'} has {self.num_tokens:,} tokens",
                f"set data.sequence_length below {max(2, self.num_tokens)}, or give more text",
            )
        self._val_fraction = val_fraction

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < self._length:
            raise IndexError(f"sequence {index} of {self._length}")
        start = index * self.sequence_length
        tokens = torch.from_numpy(self._read(start, start + self.sequence_length + 1))
        return tokens[:-1], tokens[1:]

    @property
    def tokens_per_sample(self) -> int:
        """Tokens that a sample trains on."""
        return self.sequence_length

    @property
    def fingerprint(self) -> str:
        of_split = self.split if self.split == "all" else f"{self.split}-{self._val_fraction}"
        return f"tokens-{self.header.digest}-{self.sequence_length}-{of_split}"

    def source(self, index: int) -> str:
        """What a sequence is called in messages."""
        return f"tokens from {index * self.sequence_length:,} of the {self.split} split of {self.path}"

    def _read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens [start, stop) of the split, gathered from its runs in the file."""
        if self._tokens is None:
            # In the process that reads: mapped pages are shared all the same.
            opened = open_tokens(self.path)
            if opened.header != self.header:
                raise InputError(
                    f"token file {self.path}", "it was replaced while in use", "start the run anew"
                )
            self._tokens = opened.tokens
        out = np.empty(stop - start, dtype=np.int64)
        run = int(np.searchsorted(self._ends, start, side="right"))
        done = 0
        while done < len(out):
            run_start = int(self._ends[run - 1]) if run else 0
            first = int(self._starts[run]) + start + done - run_start
            count = min(len(out) - done, int(self._ends[run]) - start - done)
            out[done : done + count] = self._tokens[first : first + count]
            done += count
            run += 1
        return out

    def __getstate__(self) -> dict[str, Any]:
        # A mapping pickles as all its bytes; the other process maps the file itself.
        return {**self.__dict__, "_tokens": None}


def _runs(
    boundaries: NDArray[np.uint64], split: TokenSplit, val_fraction: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the split's runs of tokens start and end in the file, in order."""
    num_tokens = int(boundaries[-1])
    if split == "all":
        cuts = np.array([0, num_tokens], dtype=np.int64)
        return cuts[:-1], cuts[1:]
    num_documents = len(boundaries) - 1
    wanted = np.linspace(0, num_tokens, min(num_documents, _MOST_SECTIONS) + 1)
    # Each wanted cut moves up to the next document's end; two may meet there. Searching touches a few pages.
    cuts = np.unique(boundaries[np.searchsorted(boundaries, wanted.astype(np.uint64))].astype(np.int64))
    num_sections = len(cuts) - 1
    num_val = min(num_sections - 1, max(1, round(num_sections * val_fraction)))
    order = KeyedPermutation(num_sections, (_SPLIT_KEY,))(np.arange(num_sections))
    is_val = np.zeros(num_sections, dtype=bool)
    is_val[order[:num_val]] = True
    chosen = is_val if split == "val" else ~is_val
    return cuts[:-1][chosen], cuts[1:][chosen]
