"""How often a run's ranks were started anew, and where the time went until they trained again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from drivetrain.report import wording
from drivetrain.spec.restart import Restart
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import Event, Header, RunEnded, RunStarted, StepEvent
from drivetrain.telemetry.reader import read_events

# As the summary: of a long run only the last steps are read.
_MOST_STEP_BYTES: Final = 16 << 20
_MOST_TOLD: Final = 4
PARTS: Final = ("ending", "forming", "process", "reload", "first step")


@dataclass(frozen=True, kw_only=True)
class TimedRestart:
    """One restart as rank 0's events tell it; None where they do not.

    Attributes:
        parts: seconds of each of PARTS, which follow each other from when the launcher knew to the end of the
            first step: the other ranks end; the machines agree; processes are there, and connected; the
            checkpoint is found, checked and read; the first step, with what is done once before it.
        last_step: steps done before.
        resumed_step: steps done in the checkpoint.
    """

    restart: Restart
    parts: dict[str, float]
    last_step: int | None = None
    resumed_step: int | None = None

    @property
    def seconds(self) -> float | None:
        """In all; None where training did not go on."""
        return sum(self.parts.values()) if len(self.parts) == len(PARTS) else None

    def __str__(self) -> str:
        where = f" at step {wording.count(self.last_step)}" if self.last_step is not None else ""
        text = f"{self.restart.cause}{where}"
        if self.restart.world_size != self.restart.world_size_before:
            text += f", {self.restart.world_size_before} → {wording.plural(self.restart.world_size, 'rank')}"
        if self.seconds is None or self.resumed_step is None:
            return f"{text}; its first step was not seen"
        return f"{text}: {self.seconds:.1f} s lost, resumed at step {wording.count(self.resumed_step)}"


def timed_restarts(run_dir: RunDir) -> list[TimedRestart]:
    """The restarts of the run's last launch, in order; empty where there was none."""
    restarts = _read(run_dir)
    path = run_dir.rank_events(0)
    if not restarts or not path.exists():
        return [TimedRestart(restart=item, parts={}) for item in restarts]
    start_at = path.stat().st_size - _MOST_STEP_BYTES
    kinds = {Header, RunStarted, StepEvent, RunEnded}
    events = list(read_events(path, kinds=kinds, steps_from_byte=start_at))
    return [_timed(item, events) for item in restarts]


def _read(run_dir: RunDir) -> list[Restart]:
    found = []
    try:
        lines = run_dir.restarts.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            found.append(Restart.from_line(line))
        except (ValueError, KeyError, TypeError):
            continue  # torn: the disk was full, or the launcher killed
    return found


def _timed(restart: Restart, events: Sequence[Event]) -> TimedRestart:
    timed = TimedRestart(
        restart=restart,
        parts={
            "ending": restart.ended_wall_s - restart.noticed_wall_s,
            "forming": restart.formed_wall_s - restart.ended_wall_s,
        },
    )
    index = next(
        (
            index
            for index, event in enumerate(events)
            if isinstance(event, Header)
            and event.restart == restart.attempt
            and event.wall_s >= restart.noticed_wall_s
        ),
        None,
    )
    if index is None:
        return timed
    before = [event.step for event in events[:index] if isinstance(event, StepEvent | RunEnded)]
    header, started, step = events[index], None, None
    for event in events[index + 1 :]:
        if isinstance(event, Header):
            break
        if isinstance(event, RunStarted):
            started = event
        elif isinstance(event, StepEvent):
            step = event
            break
    parts = timed.parts | {"process": header.wall_s - restart.formed_wall_s}
    if started is not None:
        parts["reload"] = started.wall_s - header.wall_s
        if step is not None:
            parts["first step"] = step.wall_s - started.wall_s
    return dataclasses.replace(
        timed,
        parts=parts,
        last_step=before[-1] if before else None,
        resumed_step=started.start_step if started is not None else None,
    )


def rows(restarts: Sequence[TimedRestart]) -> list[tuple[str, str]]:
    """For the summary: a label and its text."""
    told = [
        ("restarted" if index == 0 else "", str(item)) for index, item in enumerate(restarts[:_MOST_TOLD])
    ]
    more = len(restarts) - len(told)
    return [*told, ("", f"and {more} times more: launch/restarts.jsonl")] if more else told
