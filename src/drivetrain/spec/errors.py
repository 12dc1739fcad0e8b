"""Errors in three parts: what was asked for, what was found, what to do."""

from __future__ import annotations


class InputError(ValueError):
    """Something the user gave cannot be used: a file, a key, a number of ranks. Ends a verb with exit code 2.

    Args:
        asked: what the user asked for, as they wrote it.
        found: what was found instead, with values, host and rank where they matter.
        do: what to do about it, as a command where there is one.
    """

    def __init__(self, asked: str, found: str, do: str) -> None:
        super().__init__(asked, found, do)
        self.asked = asked
        self.found = found
        self.do = do

    def __str__(self) -> str:
        return f"{self.asked}: {self.found}\n  → {self.do}"


class NonFiniteLossError(RuntimeError):
    """The loss (or, without a loss scaler, the gradient norm) became NaN or infinite.

    Raised on every rank at the same step.
    """

    def __init__(self, *, step: int, ranks: tuple[int, ...], what: str, value: float, do: str) -> None:
        super().__init__(step, ranks, what, value, do)
        self.step = step
        self.ranks = ranks
        self.what = what
        self.value = value
        self.do = do

    def __str__(self) -> str:
        who = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"ranks {', '.join(map(str, self.ranks))}"
        return f"{self.what} became {self.value} first at step {self.step}, on {who}\n  → {self.do}"


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the last complete one is untouched."""

    def __init__(self, asked: str, found: str, do: str) -> None:
        super().__init__(asked, found, do)
        self.asked = asked
        self.found = found
        self.do = do

    def __str__(self) -> str:
        return f"{self.asked}: {self.found}\n  → {self.do}"


class BadSampleError(ValueError):
    """A sample could not be read or decoded, and the run was told to fail on such samples."""

    def __init__(self, *, source: str, reason: str) -> None:
        super().__init__(source, reason)
        self.source = source
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.source}: {self.reason}\n"
            "  → repair or remove the file, or go on without such samples: --data.on-bad-sample skip"
        )
