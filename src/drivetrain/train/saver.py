"""When a run saves, and what it resumes from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from drivetrain.engine.background import Background
from drivetrain.engine.checkpoint.files import complete_steps
from drivetrain.engine.checkpoint.load import Loaded, find_checkpoint, load_checkpoint, read_facts
from drivetrain.engine.checkpoint.save import Saved, write_checkpoint
from drivetrain.engine.checkpoint.stage import Stager
from drivetrain.engine.settings import RunSettings
from drivetrain.engine.state import TrainState
from drivetrain.engine.world import World
from drivetrain.spec.errors import InputError
from drivetrain.spec.run_dir import RunDir

# Less than a launcher gives the ranks that it ends.
_LEAVE_S = 3.0


class Saver:
    """The checkpoints of one run. Methods that read or write them are called by all ranks."""

    def __init__(self, settings: RunSettings, world: World, run_dir: RunDir | None) -> None:
        self._settings = settings
        self._world = world
        self._run_dir = run_dir
        self._ranks = world.new_host_group(settings.timeout_s)
        self._stager = Stager(world.device)
        self._writing: Background[Saved] | None = None
        self.waited_s = 0.0  # that training stood still for the latest save
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
        return self._writing is None and time.monotonic() - self._saved_at >= 60 * minutes

    def has(self, state: TrainState) -> bool:
        """Whether there is nothing to save: no run directory, or this very step is saved."""
        return self._run_dir is None or state.step == self._saved_step

    def prepare(self, state: TrainState) -> None:
        """Gets ready to save, while training goes on; called by all ranks after a first step."""
        if self._run_dir is not None:
            self._stager.prepare(state, self._world)

    def begin(self, state: TrainState, facts: dict[str, Any]) -> None:
        """Copies the state and has it written, with `facts` beside its own, while training goes on.
        An earlier save must have been finished: there is one copy at most.

        Raises:
            NonFiniteLossError: on every rank: the state is not fit to be saved.
        """
        assert self._run_dir is not None
        assert self._writing is None, "an earlier save is not finished"
        started = time.monotonic()
        staged = self._stager.stage(state, self._world, facts)
        run_dir, keep = self._run_dir, self._settings.checkpoint.keep
        self._writing = Background(
            lambda: write_checkpoint(staged, self._ranks, run_dir, keep=keep), name="checkpoint"
        )
        self._saved_at, self._saved_step, self._is_asked = time.monotonic(), state.step, False
        self.waited_s = self._saved_at - started

    @property
    def has_failed(self) -> bool:
        """Whether the save under way could not be written, as far as this rank knows by now."""
        return self._writing is not None and self._writing.has_failed

    def take_finished(self) -> Saved | None:
        """The save that has been written since the last call. Does not wait."""
        if self._writing is not None and self._writing.is_over and not self._writing.has_failed:
            return self.finish()
        return None

    def finish(self) -> Saved | None:
        """Waits until the save under way is written, if there is one, and returns it.

        Raises:
            CheckpointError: on every rank; earlier checkpoints are untouched.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return None
        started = time.monotonic()
        saved = writing.result()
        self.waited_s += time.monotonic() - started
        return saved

    def leave(self) -> None:
        """The run has failed: a save under way gets a moment to complete, and is not heard of any more."""
        if self._writing is not None:
            self._writing.wait(_LEAVE_S)
