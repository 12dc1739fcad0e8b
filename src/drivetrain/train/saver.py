"""When a run saves, and what it resumes from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from drivetrain.engine.checkpoint.files import complete_steps
from drivetrain.engine.checkpoint.load import Loaded, find_checkpoint, load_checkpoint, read_facts
from drivetrain.engine.checkpoint.save import Saved, save_checkpoint
from drivetrain.engine.settings import RunSettings
from drivetrain.engine.state import TrainState
from drivetrain.engine.world import World
from drivetrain.spec.errors import InputError
from drivetrain.spec.run_dir import RunDir


class Saver:
    """The checkpoints of one run. Methods that read or write them are called by all ranks."""

    def __init__(self, settings: RunSettings, world: World, run_dir: RunDir | None) -> None:
        self._settings = settings
        self._world = world
        self._run_dir = run_dir
        self._saved_at = time.monotonic()
        self._saved_step = -1
        self._is_asked = False

    def resume(self, state: TrainState) -> tuple[Loaded | None, list[str]]:
        """Loads what `settings.resume` names into the state, if anything; notes say what happened.

        Raises:
            InputError: another model's checkpoint, or another global batch.
            CheckpointError: what was named is damaged, or all checkpoints are.
        """
        # Started anew by the launcher after a failure: go on, whatever the first start was told.
        resume = "auto" if self._world.env.restart_count else self._settings.resume
        self._refuse_used_folder(resume)
        path, notes = find_checkpoint(resume, self._run_dir, self._world)
        if path is None:
            return None, notes
        self._refuse_another_stream(path)
        loaded = load_checkpoint(state, self._world, path)
        own = self._run_dir.checkpoints.resolve() if self._run_dir is not None else None
        if path.parent.resolve() == own:
            self._saved_step = state.step
        return loaded, [*notes, f"resumed from {path} at step {state.step}", *loaded.notes]

    def _refuse_used_folder(self, resume: str) -> None:
        run_dir = self._run_dir
        if resume == "none" and run_dir is not None and self._world.gather(complete_steps(run_dir))[0]:
            raise InputError(
                f"a new run in {run_dir.path}",
                "a run has saved checkpoints there",
                "name another output, or go on with that run: resume auto",
            )

    def _refuse_another_stream(self, path: Path) -> None:
        """The samples that follow are those that would have come only with the same seed and global batch."""
        facts = read_facts(path)
        for name, flag in (("global_batch", "--global-batch"), ("seed", "--seed")):
            was, now = facts.get(name), getattr(self._settings, name)
            if was is not None and was != now:
                raise InputError(
                    f"{flag} {now}",
                    f"{path} was trained with {was}; the samples would not go on where they stopped",
                    f"{flag} {was}",
                )

    def ask(self) -> None:
        """All ranks agreed that a checkpoint is due."""
        self._is_asked = True

    def is_due(self, num_steps: int) -> bool:
        """Whether to save after `num_steps` steps; the same on every rank."""
        every = self._settings.checkpoint.every_steps
        return self._is_asked or (every is not None and num_steps % every == 0)

    def is_due_by_clock(self) -> bool:
        """Whether this rank's clock says so. One clock decides, or ranks would ask at different steps."""
        minutes = self._settings.checkpoint.every_minutes
        if minutes is None or self._world.rank != 0:
            return False
        return time.monotonic() - self._saved_at >= 60 * minutes

    def has(self, state: TrainState) -> bool:
        """Whether there is nothing to save: no run directory, or this very step is saved."""
        return self._run_dir is None or state.step == self._saved_step

    def save(self, state: TrainState, facts: dict[str, Any]) -> Saved:
        """Writes a checkpoint with `facts` beside the state's own.

        Raises:
            CheckpointError: on every rank; earlier checkpoints are untouched.
        """
        assert self._run_dir is not None
        keep = self._settings.checkpoint.keep
        saved = save_checkpoint(state, self._world, self._run_dir, facts=facts, keep=keep)
        self._saved_at, self._saved_step, self._is_asked = time.monotonic(), state.step, False
        return saved
