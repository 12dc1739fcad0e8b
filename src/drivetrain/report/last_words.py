"""When each rank was last heard of, so that a run that stands still can name who may be holding it up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from drivetrain.telemetry.events import Event, Header, StepEvent

# Ranks write within a quarter of a second of each other; less says nothing.
_TOLD_APART_S: Final = 0.3


@dataclass(frozen=True, kw_only=True)
class LastWord:
    """The last step that a rank has written of, and the time of its last event (seconds since the epoch)."""

    step: int
    wall_s: float


class LastWords:
    """Takes in every event and heeds the two kinds that all ranks write. Clocks of several hosts are taken as
    they are.
    """

    def __init__(self) -> None:
        self._by_rank: dict[int, LastWord] = {}

    def add(self, event: Event) -> None:
        if isinstance(event, Header):
            self._by_rank[event.rank] = LastWord(step=0, wall_s=event.wall_s)
        elif isinstance(event, StepEvent):
            self._by_rank[event.rank] = LastWord(step=event.step, wall_s=event.wall_s)

    def oldest(self) -> dict[int, LastWord]:
        """The ranks that are steps behind the others or, at the same step, fell silent before them; empty
        where all were last heard of together, and of a single rank.
        """
        steps = {word.step for word in self._by_rank.values()}
        if len(steps) > 1:
            return {rank: word for rank, word in self._by_rank.items() if word.step == min(steps)}
        times_s = [word.wall_s for word in self._by_rank.values() if math.isfinite(word.wall_s)]
        if not times_s or max(times_s) - min(times_s) < _TOLD_APART_S:
            return {}
        middle_s = (max(times_s) + min(times_s)) / 2
        return {rank: word for rank, word in self._by_rank.items() if word.wall_s < middle_s}
