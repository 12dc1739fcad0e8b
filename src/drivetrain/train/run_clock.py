"""The step clock as a run uses it: steps follow each other, evaluations and set-up stand between them."""

from __future__ import annotations

import torch

from drivetrain.spec.parts import StepPart
from drivetrain.telemetry.ranks.step_clock import StepClock, StepTiming


class RunClock:
    """Cuts a run's time into steps and their parts; while paused, time counts to no step."""

    def __init__(self, device: torch.device) -> None:
        self.steps = StepClock(device)
        self._is_paused = True

    def begin_step(self, index: int) -> None:
        """Ends the step before and opens `index` where that one ended, or now if the clock was paused."""
        if not self._is_paused:
            self.steps.end_step()
        self.steps.start_step(index, after_pause=self._is_paused)
        self._is_paused = False

    def restart_step(self, index: int) -> None:
        """Drops what the open step has measured so far: it was set-up."""
        self.steps.start_step(index, after_pause=True)
        self._is_paused = False

    def mark(self, part: StepPart) -> None:
        """Gives the time since the last mark to `part`; nothing while paused."""
        if not self._is_paused:
            self.steps.mark(part)

    def pause(self) -> None:
        if not self._is_paused:
            self.steps.end_step()
            self._is_paused = True

    def pop_finished(self) -> list[StepTiming]:
        return self.steps.pop_finished()
