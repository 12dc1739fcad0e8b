"""`Unknown`: what could not be read. Never 0, never healthy, never a default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn


@dataclass(frozen=True)
class Unknown:
    """A value that could not be read, and why.

    It refuses to be used as a number or a truth, so that nobody takes it for "0" or "fine" by accident.
    """

    reason: str

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"unknown ({self.reason}) is neither true nor false; test with isinstance(…, Unknown)"
        )

    def __str__(self) -> str:
        return f"unknown ({self.reason})"

    def to_json(self) -> dict[str, str]:
        return {"unknown": self.reason}
