"""Export of a trained model's weights to safetensors, under the bare model's own names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError
from torch import Tensor

from drivetrain.engine.checkpoint.files import complete_steps, damage_of
from drivetrain.engine.checkpoint.load import read_facts, read_model
from drivetrain.spec.errors import CheckpointError, InputError
from drivetrain.spec.run_dir import RunDir, step_of_checkpoint

Weights = Literal["auto", "model", "ema"]


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A written file: its weights are the moving average if `is_average`."""

    path: Path
    step: int
    num_tensors: int
    num_bytes: int
    is_average: bool


def export(
    source: Path, target: Path | None, *, weights: Literal["auto", "model", "ema"] = "auto"
) -> Exported:
    """Writes the weights of a checkpoint, or of a run's last good one, as one safetensors file.

    The names carry no `module.` or `_orig_mod.`; the file's metadata says run, step and which weights.

    Args:
        source: a run directory or a checkpoint folder in one.
        target: the file; None writes model.safetensors into the run directory.
        weights: "ema" takes the moving average and fails if there is none; "auto" takes it if there is one.

    Raises:
        InputError: the source is neither, has no such weights, or the target cannot be written.
        CheckpointError: the checkpoint is damaged.
    """
    checkpoint, run_dir = _find(source)
    path = target or run_dir.path / "model.safetensors"
    if path.exists() and not path.is_file():
        raise InputError(f"export to {path}", "it is there and is no ordinary file", "name a file: -o FILE")
    facts = read_facts(checkpoint)
    has_average = facts["ema_updates"] is not None
    if weights == "ema" and not has_average:
        raise InputError(
            f"export --weights ema of {checkpoint}", "it has no moving average", "--weights model"
        )
    is_average = has_average and weights != "model"
    tensors = read_model(checkpoint, averaged=is_average)
    _write(path, tensors, run=run_dir.path.name, step=facts["step"], is_average=is_average)
    return Exported(
        path=path,
        step=facts["step"],
        num_tensors=len(tensors),
        num_bytes=path.stat().st_size,
        is_average=is_average,
    )


def _write(path: Path, tensors: dict[str, Tensor], *, run: str, step: int, is_average: bool) -> None:
    from safetensors.torch import save_file

    # Tied weights are stored twice: safetensors refuses tensors that share memory, and loads either name.
    apart = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    facts = {"format": "pt", "run": run, "step": str(step), "weights": "ema" if is_average else "model"}
    beside = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(apart, str(beside), metadata=facts)
        beside.replace(path)
    except (OSError, SafetensorError) as error:
        beside.unlink(missing_ok=True)
        raise InputError(
            f"export to {path}", str(error), "name a file that can be written: -o FILE"
        ) from error


def _find(source: Path) -> tuple[Path, RunDir]:
    """The checkpoint to export, and its run. Of a run it is the newest that is whole."""
    resolved = source.resolve()
    if step_of_checkpoint(resolved) is not None:
        return resolved, RunDir(resolved.parent.parent)
    run_dir = RunDir(resolved)
    damaged = []
    for step in reversed(complete_steps(run_dir)):
        folder = run_dir.checkpoint(step)
        problem = damage_of(folder)
        if problem is None:
            return folder, run_dir
        damaged.append(f"step {step}: {problem}")
    if damaged:
        raise CheckpointError(f"export {source}", "; ".join(damaged), "name another run or checkpoint")
    what = "it has no complete checkpoint" if resolved.is_dir() else "there is no such folder"
    raise InputError(f"export {source}", what, "name a run directory, or a checkpoints/step-… folder")
