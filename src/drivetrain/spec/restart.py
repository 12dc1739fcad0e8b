"""One time that the ranks of a job were started anew: a line of `launch/restarts.jsonl`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from enum import StrEnum
from signal import Signals
from typing import Any


class Why(StrEnum):
    """What made ranks start anew. Only a failure spends one of `--max-restarts`."""

    FAILED = "failed"  # a rank failed
    LOST = "lost"  # a machine is gone
    LEFT = "left"  # a machine was told to stop, and its ranks have saved with all others
    JOINED = "joined"  # a machine waits to take part; all ranks have saved before


_CAUSES = {
    Why.FAILED: "after a rank failed",
    Why.LOST: "without a machine that is gone",
    Why.LEFT: "without a machine that was told to stop, all state saved",
    Why.JOINED: "with a machine that has joined, all state saved",
}


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Times are seconds since the epoch, on the launcher that writes this (node 0's).

    Attributes:
        attempt: the number of this start, from 1; ranks know it as TORCHELASTIC_RESTART_COUNT.
        rank, signal, exit_code, message: how the rank that failed first ended; None where none did.
        noticed_wall_s: when the launcher knew.
        ended_wall_s: when every rank of the earlier start had ended.
        formed_wall_s: when the machines had agreed on the new world.
        started_wall_s: when the new processes were there.
        is_forked: whether they came from a process that had everything imported.
    """

    why: Why
    attempt: int
    world_size_before: int
    world_size: int
    rank: int | None = None
    signal: int | None = None
    exit_code: int | None = None
    message: str | None = None
    noticed_wall_s: float
    ended_wall_s: float
    formed_wall_s: float
    started_wall_s: float
    is_forked: bool

    @property
    def cause(self) -> str:
        """As it goes on after "restarted"."""
        if self.why is not Why.FAILED or self.rank is None:
            return _CAUSES[self.why]
        if self.signal is None:
            return f"after rank {self.rank} failed with exit code {self.exit_code}"
        try:
            name = Signals(self.signal).name
        except ValueError:
            name = f"signal {self.signal}"
        return f"after rank {self.rank} was killed by {name}"

    def to_line(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Restart:
        """Unknown fields of a later version are ignored.

        Raises:
            ValueError, KeyError, TypeError: it is no such line.
        """
        raw: dict[str, Any] = json.loads(line)
        names = {item.name for item in dataclasses.fields(cls)}
        known = {key: value for key, value in raw.items() if key in names}
        return cls(**{**known, "why": Why(raw["why"])})
