"""Saving: all ranks write their part beside the final place; only then does the checkpoint appear."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from drivetrain.engine.buffers import averaged_buffers
from drivetrain.engine.checkpoint import files
from drivetrain.engine.checkpoint.content import own_buffers_of, random_state, scalars_of, tensors_of
from drivetrain.engine.checkpoint.tensor_files import write_tensors
from drivetrain.engine.state import TrainState, local_part
from drivetrain.engine.world import World
from drivetrain.spec.errors import CheckpointError, NonFiniteLossError
from drivetrain.spec.run_dir import RunDir

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A finished save."""

    path: Path
    step: int
    num_bytes: int
    seconds: float


def save_checkpoint(
    state: TrainState, world: World, run_dir: RunDir, *, facts: dict[str, Any], keep: int
) -> Saved:
    """Writes a checkpoint of `state` at its step and deletes those older than the newest `keep`.

    Called by all ranks, at the same step. The folder is visible under its name only when it is whole, and
    whatever goes wrong on any rank leaves the earlier checkpoints as they were.

    Args:
        facts: what else a resume needs to know or check, as JSON values (data fingerprint, batch, …).

    Raises:
        CheckpointError: on every rank, naming the rank where it failed and why (a full disk, say).
        NonFiniteLossError: on every rank, where the state holds NaN or infinity.
    """
    started = time.monotonic()
    final, unfinished = run_dir.checkpoint(state.step), files.unfinished_path(run_dir, state.step)
    _on_first_rank(world, f"save {final}", lambda: _prepare(run_dir, unfinished))
    _check_finite(state, world)
    own_buffers = own_buffers_of(state, world)
    with averaged_buffers(state.module, world, state.replicas):
        tensors = tensors_of(state) | own_buffers
        sums = _on_all_ranks(world, f"save {final}", lambda: _write_part(world, unfinished, tensors))
    merged = {name: entry for part in sums for name, entry in part.items()}
    options = _options_elsewhere(state, world)

    def finish() -> None:
        document = {
            "schema": SCHEMA,
            "save_number": files.next_save_number(run_dir),
            "world_size": world.size,
            **facts,
            **scalars_of(state),
        }
        document["optimizer_options"] |= options
        files.write_durably(unfinished / files.STATE, json.dumps(document, indent=1))
        names = [files.STATE, ".metadata"]
        files.complete(unfinished, final, merged | files.sums_of(unfinished, names))
        files.point_latest(run_dir, state.step)
        files.prune(run_dir, keep)

    _on_first_rank(world, f"save {final}", finish)
    num_bytes = sum(int(str(entry["bytes"])) for entry in merged.values())
    return Saved(path=final, step=state.step, num_bytes=num_bytes, seconds=time.monotonic() - started)


def _options_elsewhere(state: TrainState, world: World) -> dict[str, Any]:
    """The optimizer's options of all parameters, where each rank has only some. Called by all ranks."""
    if state.replicas is None:
        return {}
    parts = world.gather(scalars_of(state)["optimizer_options"])
    return {name: value for part in parts for name, value in part.items()}


def _prepare(run_dir: RunDir, unfinished: Path) -> None:
    run_dir.checkpoints.mkdir(parents=True, exist_ok=True)
    files.remove_unfinished(run_dir)
    (unfinished / "rng").mkdir(parents=True)


def _check_finite(state: TrainState, world: World) -> None:
    """A state that holds NaN must not take the place of a good one. (Buffers may: masks are made of −inf.)"""
    bad = next(
        (
            name
            for name, parameter in state.module.named_parameters()
            if not bool(torch.isfinite(local_part(parameter.detach())).all())
        ),
        None,
    )
    found = world.gather(bad)
    ranks = tuple(rank for rank, name in enumerate(found) if name is not None)
    if ranks:
        raise NonFiniteLossError(
            step=state.step,
            ranks=ranks,
            what=f"the weights ({found[ranks[0]]})",
            value=float("nan"),
            do="nothing was saved and earlier checkpoints are untouched; lower the learning rate, clip the"
            " gradient (optim.clip_norm), or use --precision bf16 or fp32",
        )


def _write_part(world: World, unfinished: Path, tensors: dict[str, Tensor]) -> dict[str, dict[str, object]]:
    """This rank's tensors and generators; the names and sums of what it wrote."""
    rng = f"rng/rank-{world.rank:05d}.json"
    # rng holds the state before this save, whichever random numbers saving itself may draw.
    saved_random = json.dumps(random_state(world.device))
    write_tensors(tensors, unfinished, world.control)
    files.write_durably(unfinished / rng, saved_random)
    # DCP names a rank's files __RANK_N.distcp; each rank sums what it wrote itself.
    mine = [p.name for p in unfinished.glob(f"__{world.rank}_*.distcp")]
    return files.sums_of(unfinished, [*mine, rng])


def _on_all_ranks(world: World, asked: str, act: Callable[[], Any]) -> list[Any]:
    """Runs `act` on every rank and gathers the results; if any rank failed, all raise, naming it."""
    result, problem = None, None
    try:
        result = act()
    except CheckpointException as error:
        # DCP has gathered the failures of all ranks already; every rank sees the same.
        rank, failure = min(error.failures.items())
        problem = (rank, _describe(failure[0]))
    except Exception as error:  # noqa: BLE001 - told to all ranks, which raise it as one
        problem = (world.rank, _describe(error))
    answers = world.gather((result, problem))
    failed = next((p for _, p in answers if p is not None), None)
    if failed is not None:
        rank, what = failed
        raise CheckpointError(
            asked, f"rank {rank}: {what}", "make room or repair the folder; earlier checkpoints are untouched"
        )
    return [answer for answer, _ in answers]


def _on_first_rank(world: World, asked: str, act: Callable[[], None]) -> None:
    """Runs `act` on rank 0 while the others wait; all raise if it failed."""
    _on_all_ranks(world, asked, act if world.rank == 0 else (lambda: None))


def _describe(error: BaseException) -> str:
    """The error in a line; DCP wraps what the disk said in its own."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return f"{type(cause).__name__}: {cause}"
