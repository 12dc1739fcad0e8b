"""How a launched job ended: what `launch/outcome.json` holds."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from drivetrain.spec.exit_codes import ExitCode

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class RankOutcome:
    """How one rank ended. `exit_code` and `signal` are None while unknown (another host, killed launcher).

    Attributes:
        ended_wall_s: seconds since the epoch when the failure was raised, or else when the process ended.
        message: the last line of the error; `traceback` is the whole of it, as found in the rank's log.
    """

    rank: int
    local_rank: int
    node_rank: int
    host: str
    pid: int
    exit_code: int | None = None
    signal: int | None = None
    ended_wall_s: float | None = None
    message: str | None = None
    traceback: str | None = None
    log: str | None = None

    @property
    def failed(self) -> bool:
        """A rank that was asked to stop and saved its state has not."""
        return self.exit_code not in (None, ExitCode.DONE, ExitCode.PREEMPTED) or self.signal is not None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the whole job ended. `exit_code` is what the launcher itself exits with.

    Attributes:
        error: why the launcher itself gave up where no rank's failure tells it: interrupted by a signal, no
            rendezvous, a machine lost.
    """

    exit_code: int
    world_size: int
    restarts: int
    started_wall_s: float
    ended_wall_s: float
    command: tuple[str, ...]
    ranks: tuple[RankOutcome, ...] = ()
    earliest_failure: RankOutcome | None = None
    error: str | None = None
    schema: int = SCHEMA

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """Reads `to_json`'s text; unknown fields of a later schema are ignored."""
        raw = json.loads(text)
        raw["ranks"] = tuple(_known(RankOutcome, item) for item in raw["ranks"])
        if raw.get("earliest_failure") is not None:
            raw["earliest_failure"] = _known(RankOutcome, raw["earliest_failure"])
        raw["command"] = tuple(raw["command"])
        return cls(**{key: value for key, value in raw.items() if key in _names(cls)})


def _names(kind: type[Any]) -> set[str]:
    return {item.name for item in dataclasses.fields(kind)}


def _known(kind: type[RankOutcome], raw: dict[str, Any]) -> RankOutcome:
    return kind(**{key: value for key, value in raw.items() if key in _names(kind)})
