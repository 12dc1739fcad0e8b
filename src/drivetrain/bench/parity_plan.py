"""The files through which the parent of a comparison and its ranks agree: what to run, and how it went.

    <folder>/plan.json                 the trials, in order
    <folder>/trials/01-ddp-x2/         of each trial:
        config.yaml                    its run file
        rank-00000.jsonl               what each rank recorded (parity_records)
        started, ended-00001.0         marks: rank 0 has begun; a rank's process has ended, with its exit code
        run/                           its run directory
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drivetrain.bench.parity_records import TrialRecord, read_record

PROGRESS_MARK = "parity: "
"""How the lines of rank 0 begin that are for the screen."""

_ENDED = re.compile(r"ended-(\d+)\.(-?\d+)")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One strategy on so many ranks; `folder` is its own, with its `config.yaml`."""

    name: str
    strategy: str
    world_size: int
    folder: Path
    timeout_s: float = 1800.0

    def record(self, rank: int) -> Path:
        return self.folder / f"rank-{rank:05d}.jsonl"

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def started(self) -> Path:
        return self.folder / "started"

    def mark_ended(self, rank: int, code: int) -> None:
        """Says that the process of `rank` has ended: 0, an exit code, or minus a signal's number."""
        (self.folder / f"ended-{rank:05d}.{code}").touch()

    def ended(self) -> dict[int, int]:
        """The exit codes of the ranks that have ended."""
        matches = filter(None, (_ENDED.fullmatch(path.name) for path in self.folder.iterdir()))
        return {int(match[1]): int(match[2]) for match in matches}

    def read(self) -> TrialRecord:
        """What all ranks wrote, once they have ended."""
        ended = self.ended()
        ranks = range(self.world_size)
        return TrialRecord(
            ranks=tuple(
                read_record(self.record(rank), rank, missing=_how(rank, ended.get(rank))) for rank in ranks
            )
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The trials of one launch. The first is the reference: where it fails, the rest is left out."""

    num_steps: int
    trials: tuple[Trial, ...]

    @property
    def world_size(self) -> int:
        return max(trial.world_size for trial in self.trials)


def trial_folder(folder: Path, index: int, name: str, world_size: int) -> Path:
    """Creates the folder of trial `index`."""
    words = re.sub(r"[^\w.-]+", "-", name).strip("-")
    path = folder / "trials" / f"{index:02d}-{words}-x{world_size}"
    path.mkdir(parents=True)
    return path


def write_plan(folder: Path, num_steps: int, trials: Sequence[Trial]) -> None:
    content = [{**dataclasses.asdict(trial), "folder": str(trial.folder)} for trial in trials]
    (folder / "plan.json").write_text(json.dumps({"num_steps": num_steps, "trials": content}, indent=1))


def read_plan(folder: Path) -> Plan:
    raw = json.loads((folder / "plan.json").read_text())
    trials = tuple(Trial(**{**item, "folder": Path(item["folder"])}) for item in raw["trials"])
    return Plan(num_steps=raw["num_steps"], trials=trials)


def _how(rank: int, code: int | None) -> str:
    if code is None:
        return f"rank {rank} was not started"
    if code < 0:
        return f"rank {rank} was ended by signal {-code}"
    return f"rank {rank} ended with exit code {code} before it was done"
