"""Errors that explain themselves: what was asked for, what was found, what to do."""

from __future__ import annotations


class ExplainedError(Exception):
    """An error whose text says all that a user needs; a traceback would only hide it.

    Attributes:
        asked: what was asked for, in the user's words.
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


class InputError(ExplainedError, ValueError):
    """Something the user gave cannot be used: a file, a key, a number of ranks. Ends a verb with code 2."""


class CheckpointError(ExplainedError, RuntimeError):
    """A checkpoint could not be written or read; the last complete one is untouched."""


class LoaderError(ExplainedError, RuntimeError):
    """Loading broke down although no sample is at fault: a worker process was killed, or hung."""


class NonFiniteLossError(ExplainedError, RuntimeError):
    """The loss (or, without a loss scaler, the gradient norm) became NaN or infinite.

    Raised on every rank at the same step. Steps count from 1.
    """

    def __init__(self, *, step: int, ranks: tuple[int, ...], what: str, value: float, do: str) -> None:
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        super().__init__(f"step {step}", f"{what} became {value} first at step {step}, on {who}", do)
        self.step = step
        self.ranks = ranks
        self.value = value

    def __str__(self) -> str:
        return f"{self.found}\n  → {self.do}"


class LossSpikeError(ExplainedError, RuntimeError):
    """The loss leapt far above the steps before, and the run was told to stop then. Raised on every rank at
    the same step."""

    def __init__(self, *, step: int, found: str, do: str) -> None:
        super().__init__(f"step {step}", found, do)
        self.step = step


class CorruptionError(ExplainedError, RuntimeError):
    """Ranks that must hold the same weights do not: memory, a link or a kernel gave a wrong bit.

    Raised on every rank at the same step. Steps count from 1.
    """

    def __init__(self, *, step: int, ranks: tuple[int, ...], do: str) -> None:
        who = f"rank {ranks[0]} holds" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} hold"
        found = f"after step {step} {who} other weights than the ranks that must hold the same"
        super().__init__(f"step {step}", found, do)
        self.step = step
        self.ranks = ranks

    def __str__(self) -> str:
        return f"{self.found}\n  → {self.do}"


class BadSampleError(ExplainedError, ValueError):
    """A sample could not be read or decoded, and the run was told to fail on such samples."""

    def __init__(self, *, source: str, reason: str) -> None:
        super().__init__(
            source,
            reason,
            "repair or remove the file, or go on without such samples: --data.on-bad-sample skip",
        )
        self.source = source
        self.reason = reason
