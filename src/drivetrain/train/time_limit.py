"""When the time allotted to this job ends, and whether it is time to save before that."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from drivetrain.spec.job import DEADLINE_VARIABLE

# Slurm tells it since 22.05, as seconds since the epoch.
_VARIABLES = (DEADLINE_VARIABLE, "SLURM_JOB_END_TIME")
# Beyond the save itself: the last steps until all ranks have agreed, and leaving.
_MARGIN_S = 20.0
_STEPS_TO_AGREE = 4
# Until a save has been timed; of a short job no more than this share of its time.
_FIRST_SAVE_S = 60.0
_FIRST_SAVE_SHARE = 0.1


def deadline_of(environ: Mapping[str, str]) -> float | None:
    """Seconds since the epoch when the job is ended from outside; None where nothing says so."""
    ends = [float(environ[name]) for name in _VARIABLES if _is_number(environ.get(name))]
    return min(ends, default=None)


class TimeLimit:
    """Asks for a stop early enough that a save fits, taken to last half as long again as the longest."""

    def __init__(self, deadline_s: float | None = None) -> None:
        self._deadline_s = deadline_of(os.environ) if deadline_s is None else deadline_s
        self._started_s = time.time()
        self._longest_save_s: float | None = None

    def saved(self, seconds: float) -> None:
        self._longest_save_s = max(self._longest_save_s or 0.0, seconds)

    def is_near(self, step_s: float) -> bool:
        """Whether to stop now; `step_s` is a step's time, NaN while unknown."""
        if self._deadline_s is None:
            return False
        if self._longest_save_s is None:
            save_s = min(_FIRST_SAVE_S, _FIRST_SAVE_SHARE * (self._deadline_s - self._started_s))
        else:
            save_s = 1.5 * self._longest_save_s
        steps_s = _STEPS_TO_AGREE * step_s if step_s == step_s else 0.0
        return time.time() >= self._deadline_s - save_s - steps_s - _MARGIN_S


def _is_number(text: str | None) -> bool:
    try:
        return text is not None and float(text) > 0
    except ValueError:
        return False
