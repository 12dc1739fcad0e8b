"""Loading: find the last whole checkpoint, check every byte, then copy into the live tensors."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from drivetrain.engine.checkpoint import files
from drivetrain.engine.checkpoint.content import (
    own_buffers_of,
    restore,
    restore_own_buffers,
    restore_random_state,
    tensors_of,
)
from drivetrain.engine.checkpoint.tensor_files import read_sizes, read_tensors
from drivetrain.engine.state import TrainState
from drivetrain.engine.world import World
from drivetrain.spec.errors import CheckpointError, ExplainedError, InputError
from drivetrain.spec.run_dir import RunDir, step_of_checkpoint


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What was resumed from. `facts` is state.json; `notes` say what was passed over or differs."""

    path: Path
    facts: dict[str, Any]
    notes: tuple[str, ...]


def find_checkpoint(resume: str, run_dir: RunDir | None, world: World) -> tuple[Path | None, list[str]]:
    """The checkpoint to resume from, whole and undamaged, and notes on those passed over.

    Called by all ranks; they share the reading. `resume` is "auto" (the newest good one of the run, if it has
    any), "none", or a path to a checkpoint or a run, which must then be good.

    Raises:
        CheckpointError: a path was given and it is damaged or no checkpoint; or the run has complete
            checkpoints and all of them are damaged.
    """
    if resume == "none":
        return None, []
    if resume != "auto":
        path = Path(resume)
        if step_of_checkpoint(path.resolve()) is not None:
            problem = _problem(path, world)
            if problem is not None:
                raise CheckpointError(
                    f"resume {path}", problem, "name another, or --resume auto for the last good"
                )
            return path.resolve(), []
        run_dir = RunDir(path)
        if not run_dir.checkpoints.is_dir():
            what = "it is neither a checkpoint (step-…) nor a run that has any"
            raise InputError(
                f"resume {path}", what if path.exists() else "there is no such folder", "check the path"
            )
    if run_dir is None:
        return None, []
    return _newest_good(run_dir, world, required=resume != "auto")


def _newest_good(run_dir: RunDir, world: World, *, required: bool) -> tuple[Path | None, list[str]]:
    # Rank 0's listing counts: another rank may not see a fresh folder of a network file system yet.
    steps = world.gather(files.complete_steps(run_dir))[0]
    notes: list[str] = []
    for step in reversed(steps):
        problem = _problem(run_dir.checkpoint(step), world)
        if problem is None:
            return run_dir.checkpoint(step), notes
        notes.append(f"{run_dir.checkpoint(step)} is damaged and was passed over: {problem}")
    if notes or required:
        raise CheckpointError(
            f"resume from {run_dir.path}",
            "; ".join(notes) or "it has no complete checkpoint",
            "start anew with --resume none and another --output",
        )
    return None, []


def _problem(path: Path, world: World) -> str | None:
    """What is wrong with a checkpoint, if anything. The ranks sum its files in turn, each its share."""
    found = files.damage_of(path, share=slice(world.rank, None, world.size))
    return next((problem for problem in world.gather(found) if problem is not None), None)


_NEEDED_FACTS = {"step", "position", "world_size", "optimizer", "optimizer_options", "scaler", "ema_updates"}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns whatever a damaged or foreign content raises into one error that names the checkpoint."""
    try:
        yield
    except (CheckpointException, pickle.UnpicklingError, OSError, EOFError) as error:
        found = str(error)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, ExplainedError):
            raise
        found = f"{type(error).__name__}: {error}"
    else:
        return
    raise CheckpointError(
        f"read {path}",
        f"its content is not a checkpoint's: {found.splitlines()[0]}",
        "name another checkpoint",
    )


def read_facts(path: Path) -> dict[str, Any]:
    """What state.json of the checkpoint at `path` holds.

    Raises:
        CheckpointError: it is not what a save writes.
    """
    with _reading(path):
        facts: dict[str, Any] = json.loads((path / files.STATE).read_text(encoding="utf-8"))
        missing = {
            "step",
            "position",
            "world_size",
            "optimizer",
            "optimizer_options",
            "ema_updates",
        } - facts.keys()
        if missing:
            raise ValueError(f"{files.STATE} lacks {', '.join(sorted(missing))}")
    return facts


def load_checkpoint(state: TrainState, world: World, path: Path) -> Loaded:
    """Copies the checkpoint at `path` into `state`. Called by all ranks.

    Raises:
        InputError: it is another model's checkpoint; names what differs first.
        CheckpointError: it cannot be read.
    """
    facts = read_facts(path)
    notes: list[str] = []
    if facts["optimizer"] != type(state.optimizer).__name__:
        raise InputError(
            f"resume from {path}",
            f"it was trained with {facts['optimizer']}, this run uses {type(state.optimizer).__name__}",
            "set optim.name as it was",
        )
    tensors: dict[str, Any] = dict(tensors_of(state))
    own_buffers = own_buffers_of(state, world)
    if facts["world_size"] != world.size:
        notes.append(
            f"the checkpoint was written by {facts['world_size']} ranks, this run has {world.size}: "
            "running statistics start from their mean, random generators from the seed"
        )
    else:
        tensors |= own_buffers
    if state.ema is None and facts["ema_updates"] is not None:
        notes.append("the checkpoint has a weight average, which this run does not go on with (ema_decay)")
    if state.ema is not None and facts["ema_updates"] is None:
        notes.append("the checkpoint has no weight average: it starts from the loaded weights")
        tensors = {name: t for name, t in tensors.items() if not name.startswith("ema.")}
    with _reading(path):
        wanted = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if state.replicas is not None:  # each rank has some of the names
            wanted = {name: shape for part in world.gather(wanted) for name, shape in part.items()}
        _check_same_model(wanted, read_sizes(path), path)
        read_tensors(tensors, path, world.control)
        notes += restore(state, tensors, facts)
    if facts["world_size"] == world.size:
        restore_own_buffers(state.module, world, own_buffers)
    if state.ema is not None and facts["ema_updates"] is None:
        for name, parameter in state.module.named_parameters():
            if name in state.ema.weights:
                state.ema.weights[name].copy_(parameter.detach())
    if facts["world_size"] == world.size:
        with _reading(path):
            saved = (path / "rng" / f"rank-{world.rank:05d}.json").read_text(encoding="utf-8")
            restore_random_state(json.loads(saved), world.device)
    return Loaded(path=path, facts=facts, notes=tuple(notes))


def _check_same_model(
    wanted: dict[str, tuple[int, ...]], sizes: dict[str, TensorStorageMetadata], path: Path
) -> None:
    saved = {name: tuple(entry.size) for name, entry in sizes.items()}
    has = {name for name in saved if name.startswith("model.")}
    differences = [f"{_plain(n)} is missing in the checkpoint" for n in wanted if n not in saved]
    differences += [f"{_plain(n)} is unknown to this model" for n in sorted(has - set(wanted))]
    differences += [
        f"{_plain(n)} has shape {saved[n]} in the checkpoint and {shape} here"
        for n, shape in wanted.items()
        if n in saved and saved[n] != shape
    ]
    if differences:
        more = f", and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise InputError(
            f"resume from {path}",
            f"it is another model's checkpoint: {'; '.join(differences[:3])}{more}",
            "use the model it was trained with, as in the run's config.yaml; or another --output",
        )


def _plain(name: str) -> str:
    return name.removeprefix("model.")


@torch.no_grad()
def read_model(path: Path, *, averaged: bool) -> dict[str, torch.Tensor]:
    """The model's tensors alone, on the CPU, of a checked checkpoint; for export. One process, no group.

    Args:
        averaged: take the moving average of the weights where there is one.

    Raises:
        CheckpointError: damaged or incomplete.
    """
    problem = files.damage_of(path)
    if problem is not None:
        raise CheckpointError(f"read {path}", problem, "name another checkpoint")
    with _reading(path):
        wanted = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in read_sizes(path).items()
            if name.startswith("model.") or (averaged and name.startswith("ema."))
        }
        read_tensors(wanted, path, None)
    tensors = {name.removeprefix("model."): t for name, t in wanted.items() if name.startswith("model.")}
    return tensors | {name.removeprefix("ema."): t for name, t in wanted.items() if name.startswith("ema.")}
