"""Weights & Biases, online or offline (`wandb sync` later). An extra: the package is imported on use."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Mapping
from typing import Any

from drivetrain.spec.errors import InputError
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.sinks.table import SinkRequest


def open_sink(request: SinkRequest) -> WandbSink:
    return WandbSink(request)


class WandbSink:
    """One wandb run a run directory, which a resume continues under the same id.

    The x-axis is the value "step" rather than wandb's own counter, which refuses to go back after a resume.

    Raises:
        InputError: the mode is none of wandb's, or the package is missing.
    """

    def __init__(self, request: SinkRequest) -> None:
        if request.wandb_mode not in ("offline", "online"):
            raise InputError(
                f"wandb mode {request.wandb_mode!r}",
                "the modes are off, offline and online",
                "use one of them",
            )
        wandb = _import_wandb()
        self._run = wandb.init(
            project=request.wandb_project,
            id=_run_id(request.run_dir),
            name=request.run_dir.path.name,
            dir=str(request.run_dir.path),
            config=dict(request.config),
            mode=request.wandb_mode,
            # Offline there is no server to ask for the run; `wandb sync --append` joins the pieces by the id.
            resume="allow" if request.wandb_mode == "online" else None,
            # Our ranks' output has its own files; wandb must neither capture it nor print into it.
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

    def text(self, step: int, name: str, text: str) -> None:  # noqa: ARG002  a summary has no steps
        self._run.summary[name] = text

    def close(self) -> None:
        self._run.finish()


def _import_wandb() -> Any:
    try:
        wandb = importlib.import_module("wandb")
    except ImportError:
        wandb = None
    # A folder `wandb/` of earlier runs in the working directory imports as an empty namespace package.
    if wandb is None or not hasattr(wandb, "init"):
        raise InputError(
            "metrics sink wandb", "the package wandb is not installed", "pip install 'drivetrain[wandb]'"
        )
    return wandb


def _run_id(run_dir: RunDir) -> str:
    """The run's id at wandb, made once and kept in the run directory."""
    path = run_dir.path / "wandb-run-id"
    if path.exists() and (kept := path.read_text(encoding="ascii").strip()):
        return kept
    run_dir.path.mkdir(parents=True, exist_ok=True)
    made = uuid.uuid4().hex[:12]
    path.write_text(made + "\n", encoding="ascii")
    return made
