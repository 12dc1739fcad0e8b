"""The run directory: one place for everything a run writes, so that every other verb finds it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

RUN_DIR_VARIABLE = "DRIVETRAIN_RUN_DIR"
"""The environment variable that tells a rank's own script where its run is written."""

_STEP = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class RunDir:
    """Names of the files of a run. Pure: creates and reads nothing but `checkpoints()` listings."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved, closed configuration, with the versions it ran on."""
        return self.path / "config.yaml"

    @property
    def asked_config(self) -> Path:
        """What the current start was asked to do; it becomes `config` once training has begun."""
        return self.launch / "config.yaml"

    @property
    def launch(self) -> Path:
        return self.path / "launch"

    @property
    def imports(self) -> Path:
        """The modules that a rank had imported when it had done its first step."""
        return self.launch / "imports.txt"

    @property
    def restarts(self) -> Path:
        """How often ranks were started anew, why, and how long it took the launcher."""
        return self.launch / "restarts.jsonl"

    @property
    def outcome(self) -> Path:
        """How the run ended, per rank, with the earliest failure."""
        return self.launch / "outcome.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank:05d}.log"

    @property
    def events(self) -> Path:
        return self.path / "events"

    def rank_events(self, rank: int) -> Path:
        return self.events / f"rank-{rank:05d}.jsonl"

    @property
    def certificate(self) -> Path:
        """What each step consumed and gave."""
        return self.path / "certificate.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    @property
    def latest(self) -> Path:
        """A link to the last complete checkpoint."""
        return self.checkpoints / "latest"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tb"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def is_used_for_training(self) -> bool:
        """Whether a run has got through its set-up here, or saved anything."""
        return self.config.exists() or self.checkpoints.exists()

    @property
    def is_used(self) -> bool:
        """Whether a run has already written here."""
        return self.config.exists() or self.events.exists() or self.checkpoints.exists()


def step_of_checkpoint(path: Path) -> int | None:
    """The step in a checkpoint folder's name, or None where it is not one."""
    match = _STEP.fullmatch(path.name)
    return int(match.group(1)) if match else None
