"""The micro-batch that `micro_batch: auto` has been brought down to, kept in the run's folder.

Ranks cannot agree on an out-of-memory while their peers sit in a collective. So the rank that met it notes a
smaller micro-batch and ends, and whoever starts the ranks anew starts them with that; the global batch stays.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from drivetrain.spec.run_dir import RunDir


def fitted_micro_batch(run_dir: RunDir) -> int | None:
    """What an earlier start of the run was brought down to; None if it never ran out of memory."""
    try:
        return int(_file(run_dir).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def note_smaller(run_dir: RunDir, micro_batch: int) -> int | None:
    """Halves the micro-batch that was too large, for the next start. None where it was 1: nothing is left.

    Any rank may call it, several at once. A folder that cannot be written changes nothing.
    """
    if micro_batch <= 1:
        return None
    smaller = min(micro_batch // 2, fitted_micro_batch(run_dir) or micro_batch)
    beside = _file(run_dir).with_name(f".micro_batch.{os.getpid()}")
    with contextlib.suppress(OSError):
        beside.write_text(f"{smaller}\n", encoding="ascii")
        beside.replace(_file(run_dir))
    return smaller


def _file(run_dir: RunDir) -> Path:
    return run_dir.launch / "micro_batch"
