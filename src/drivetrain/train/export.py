"""Export of a trained model's weights to safetensors, under the bare model's own names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from drivetrain.engine.checkpoint.load import read_model
from drivetrain.spec.errors import InputError
from drivetrain.spec.run_dir import RunDir, step_of_checkpoint


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
    """Writes the weights of a checkpoint, or of a run's latest, as one safetensors file.

    The names carry no `module.` or `_orig_mod.`; the file's metadata says run, step and world size.

    Args:
        source: a run directory or a checkpoint folder in one.
        target: the file; None writes model.safetensors into the run directory.
        weights: "ema" takes the moving average and fails if there is none; "auto" takes it if there is one.

    Raises:
        InputError: the source is neither, has no such weights, or the target cannot be written.
        CheckpointError: the checkpoint is damaged.
    """
    from safetensors.torch import save_file

    checkpoint, run_dir = _find(source)
    facts = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    has_average = facts["ema_updates"] is not None
    if weights == "ema" and not has_average:
        raise InputError(
            f"export --weights ema of {checkpoint}", "it has no moving average", "--weights model"
        )
    is_average = has_average and weights != "model"
    # Tied weights are stored twice: safetensors refuses tensors that share memory, and loads either name.
    tensors = {
        name: t.contiguous().clone() for name, t in read_model(checkpoint, averaged=is_average).items()
    }
    path = target or run_dir.path / "model.safetensors"
    metadata = {
        "format": "pt",
        "run": run_dir.path.name,
        "step": str(facts["step"]),
        "weights": "ema" if is_average else "model",
    }
    beside = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, str(beside), metadata=metadata)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InputError(
            f"export to {path}", str(error), "name a file that can be written: -o FILE"
        ) from error
    return Exported(
        path=path,
        step=facts["step"],
        num_tensors=len(tensors),
        num_bytes=path.stat().st_size,
        is_average=is_average,
    )


def _find(source: Path) -> tuple[Path, RunDir]:
    resolved = source.resolve()
    if step_of_checkpoint(resolved) is not None:
        return resolved, RunDir(resolved.parent.parent)
    run_dir = RunDir(resolved)
    if not run_dir.latest.exists():
        what = "it has no complete checkpoint" if resolved.is_dir() else "there is no such folder"
        raise InputError(f"export {source}", what, "name a run directory, or a checkpoints/step-… folder")
    return run_dir.latest.resolve(), run_dir
