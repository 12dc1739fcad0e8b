"""Saving: all ranks write their part beside the final place; only then does the checkpoint appear."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException

from drivetrain.engine.checkpoint import files
from drivetrain.engine.checkpoint.stage import Staged
from drivetrain.engine.checkpoint.tensor_files import write_tensors
from drivetrain.engine.world import HostGroup
from drivetrain.spec.errors import CheckpointError
from drivetrain.spec.run_dir import RunDir

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A finished save. `seconds` is what the writing took."""

    path: Path
    step: int
    num_bytes: int
    seconds: float


def write_checkpoint(staged: Staged, ranks: HostGroup, run_dir: RunDir, *, keep: int) -> Saved:
    """Writes a staged checkpoint and deletes those older than the newest `keep`.

    Called by all ranks with the same step, from any thread, as long as nothing else uses `ranks` meanwhile.
    The folder is visible under its name only when it is whole, and whatever goes wrong on any rank leaves the
    earlier checkpoints as they were.

    Raises:
        CheckpointError: on every rank, naming the rank where it failed and why (a full disk, say).
    """
    started = time.monotonic()
    final, unfinished = run_dir.checkpoint(staged.step), files.unfinished_path(run_dir, staged.step)
    asked = f"save {final}"
    _on_first_rank(ranks, asked, lambda: _prepare(run_dir, unfinished))
    sums = _on_all_ranks(ranks, asked, lambda: _write_part(ranks, unfinished, staged))
    merged = {name: entry for part in sums for name, entry in part.items()}

    def finish() -> None:
        number = files.next_save_number(run_dir)
        document = {"schema": SCHEMA, "save_number": number, **staged.document}
        files.write_durably(unfinished / files.STATE, json.dumps(document, indent=1))
        names = [files.STATE, ".metadata"]
        files.complete(unfinished, final, merged | files.sums_of(unfinished, names))
        files.point_latest(run_dir, staged.step)
        files.prune(run_dir, keep)

    _on_first_rank(ranks, asked, finish)
    num_bytes = sum(int(str(entry["bytes"])) for entry in merged.values())
    return Saved(path=final, step=staged.step, num_bytes=num_bytes, seconds=time.monotonic() - started)


def _prepare(run_dir: RunDir, unfinished: Path) -> None:
    run_dir.checkpoints.mkdir(parents=True, exist_ok=True)
    files.remove_unfinished(run_dir)
    (unfinished / "rng").mkdir(parents=True)


def _write_part(ranks: HostGroup, unfinished: Path, staged: Staged) -> dict[str, dict[str, object]]:
    """This rank's tensors and generators; the names and sums of what it wrote."""
    rng = f"rng/rank-{ranks.rank:05d}.json"
    write_tensors(staged.tensors, unfinished, ranks.group)
    files.write_durably(unfinished / rng, staged.random_state)
    # DCP names a rank's files __RANK_N.distcp; each rank sums what it wrote itself.
    mine = [p.name for p in unfinished.glob(f"__{ranks.rank}_*.distcp")]
    return files.sums_of(unfinished, [*mine, rng])


def _on_all_ranks(ranks: HostGroup, asked: str, act: Callable[[], Any]) -> list[Any]:
    """Runs `act` on every rank and gathers the results; if any rank failed, all raise, naming it."""
    result, problem = None, None
    try:
        result = act()
    except CheckpointException as error:
        # DCP has gathered the failures of all ranks already; every rank sees the same.
        rank, failure = min(error.failures.items())
        problem = (rank, _describe(failure[0]))
    except Exception as error:  # noqa: BLE001 - told to all ranks, which raise it as one
        problem = (ranks.rank, _describe(error))
    answers = ranks.gather((result, problem))
    failed = next((p for _, p in answers if p is not None), None)
    if failed is not None:
        rank, what = failed
        raise CheckpointError(
            asked, f"rank {rank}: {what}", "make room or repair the folder; earlier checkpoints are untouched"
        )
    return [answer for answer, _ in answers]


def _on_first_rank(ranks: HostGroup, asked: str, act: Callable[[], None]) -> None:
    """Runs `act` on rank 0 while the others wait; all raise if it failed."""
    _on_all_ranks(ranks, asked, act if ranks.rank == 0 else (lambda: None))


def _describe(error: BaseException) -> str:
    """The error in a line; DCP wraps what the disk said in its own."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return f"{type(cause).__name__}: {cause}"
