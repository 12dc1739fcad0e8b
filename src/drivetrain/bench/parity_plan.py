"""The files through which the parent of a comparison and its ranks agree: what to run, and how it went.

<folder>/plan.json                 the trials, in order
<folder>/over                      a mark: nothing more will be started
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from drivetrain.bench.parity_records import RankRecord, TrialRecord, read_record

PROGRESS_MARK = "parity: "
"""How the lines of rank 0 begin that are for the screen."""

_ENDED = re.compile(r"ended-(\d+)\.(-?\d+|stopped)")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One strategy on so many ranks.

    Attributes:
        folder: the trial's own, with its `config.yaml`.
        reverses: whether the samples of each micro-batch are given to the model in reverse order.
        timeout_s: after which its processes are ended.
    """

    name: str
    strategy: str
    world_size: int
    folder: Path
    reverses: bool = False
    timeout_s: float = 3600.0

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

    def mark_ended(self, rank: int, code: int | None) -> None:
        """Says that the process of `rank` has ended: with an exit code, minus a signal's number, or (None)
        because it was stopped by us."""
        (self.folder / f"ended-{rank:05d}.{'stopped' if code is None else code}").touch()

    def ended(self) -> dict[int, int | None]:
        """How the ranks that have ended did so, the first to end first; see `mark_ended`."""
        marks = sorted(self.folder.glob("ended-*"), key=lambda path: path.stat().st_mtime_ns)
        matches = [_ENDED.fullmatch(path.name) for path in marks]
        return {int(m[1]): None if m[2] == "stopped" else int(m[2]) for m in matches if m is not None}

    def read(self) -> TrialRecord:
        """What all ranks wrote, once they have ended."""
        ended = self.ended()
        ranks = tuple(
            read_record(self.record(rank), rank, missing=self._how(rank, ended))
            for rank in range(self.world_size)
        )
        return TrialRecord(ranks=ranks, reason=self._headline(ranks, ended))

    def _how(self, rank: int, ended: Mapping[int, int | None]) -> str:
        if rank not in ended:
            return f"rank {rank} was not started"
        code = ended[rank]
        if code is None:
            return f"rank {rank} was stopped, after {self.timeout_s:g} s or because another rank had failed"
        if code < 0:
            return f"rank {rank} was ended by signal {-code}"
        return f"rank {rank} ended with exit code {code} before it was done"

    def _headline(self, ranks: tuple[RankRecord, ...], ended: Mapping[int, int | None]) -> str:
        """The reason of the rank that failed first. One that died speaks before the others, whose words are
        about their lost connection to it; those that were stopped speak last."""

        def order(rank: int) -> int:
            code = ended[rank]
            return 2 if code is None else 0 if code < 0 else 1

        refused = [item.reason for item in ranks if item.status == "refused"]
        ordered = [ranks[rank].reason for rank in sorted(ended, key=order) if ranks[rank].status != "done"]
        rest = [item.reason for item in ranks if item.status != "done"]
        return next(iter([*refused, *ordered, *rest]), "")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The trials of one launch. The first is the reference: where it fails, the rest is left out."""

    folder: Path
    num_steps: int
    trials: tuple[Trial, ...]

    @property
    def over(self) -> Path:
        return self.folder / "over"

    @property
    def world_size(self) -> int:
        return max(trial.world_size for trial in self.trials)


def trial_folder(folder: Path, index: int, name: str, world_size: int) -> Path:
    """Creates the folder of trial `index`."""
    words = re.sub(r"[^\w.-]+", "-", name).strip("-")
    path = folder / "trials" / f"{index:02d}-{words}-x{world_size}"
    path.mkdir(parents=True)
    return path


def write_plan(plan: Plan) -> None:
    trials = [{**dataclasses.asdict(trial), "folder": str(trial.folder)} for trial in plan.trials]
    text = json.dumps({"num_steps": plan.num_steps, "trials": trials}, indent=1)
    (plan.folder / "plan.json").write_text(text, encoding="utf-8")


def read_plan(folder: Path) -> Plan:
    raw = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    trials = tuple(Trial(**{**item, "folder": Path(item["folder"])}) for item in raw["trials"])
    return Plan(folder=folder, num_steps=raw["num_steps"], trials=trials)
