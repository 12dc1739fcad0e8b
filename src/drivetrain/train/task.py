"""A task: the user's own model, data and loss."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from torch import nn

from drivetrain.config.schema import RunConfig
from drivetrain.engine.objective import Objective
from drivetrain.engine.state import BuildOptimizer
from drivetrain.spec.errors import InputError
from drivetrain.train.evaluate import UpdateMetric, update_with_targets


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to train.

    Attributes:
        build_model: makes the model, on the CPU; called on every rank after seeding.
        train_data, eval_data: any map-style data sets (`__len__`, `__getitem__`).
        objective: the loss; `eval_objective` that of evaluation, None for the same (without the training's
            label smoothing, say).
        draw, render: augmentation of training samples: `draw(generator)` gives parameters, `render(sample,
            params)` the sample; None for data sets with transforms of their own.
        eval_render: `eval_render(sample)` prepares an evaluation sample; None takes it as it is.
        num_classes: with it, a sample whose label (the second of a tuple, or "y" or "label" of a dict) is not
            in 0 … num_classes - 1 is a bad sample, named, instead of an assertion on the GPU.
        build_metrics: makes torchmetrics metrics by name; called on every rank.
        update_metric: feeds one metric from the model's output and a micro-batch; by default with outputs and
            targets of the valid samples.
        build_optimizer: from the bare model; None takes the run file's `optim`.
        loader_cost: "memory" where a sample costs microseconds (no worker processes), else "decode".
        static_graph: every step uses the same parameters in the same order.
        sample_unit: what a sample is called in rates.
        notes: what should be said at the start.
    """

    build_model: Callable[[], nn.Module]
    train_data: Any
    objective: Objective
    eval_data: Any = None
    eval_objective: Objective | None = None
    draw: Callable[..., Any] | None = None
    render: Callable[..., Any] | None = None
    eval_render: Callable[..., Any] | None = None
    num_classes: int | None = None
    build_metrics: Callable[[], Mapping[str, Any]] = dict
    update_metric: UpdateMetric = update_with_targets
    build_optimizer: BuildOptimizer | None = None
    loader_cost: Literal["memory", "decode"] = "decode"
    static_graph: bool = False
    sample_unit: str = "samples"
    notes: tuple[str, ...] = ()


def load_task(where: str, config: RunConfig) -> Task:
    """Calls the task function named `file.py:function` or `package.module:function`.

    The function takes the run's configuration, or nothing.

    Raises:
        InputError: no such file, module or function, or it returns something else. What the user's own code
            raises is not caught.
    """
    place, _, name = where.rpartition(":")
    module = _load_file(Path(place), where) if place.endswith(".py") else _import(place, where)
    build = getattr(module, name, None)
    if not callable(build):
        functions = [n for n, item in vars(module).items() if inspect.isfunction(item)]
        raise InputError(
            f"task {where}", f"{place} has no function {name!r}", f"it has: {', '.join(functions)}"
        )
    task = build(config) if inspect.signature(build).parameters else build()
    if not isinstance(task, Task):
        raise InputError(
            f"task {where}", f"{name}() returned a {type(task).__name__}", "return drivetrain.Task(…)"
        )
    return task


def _load_file(path: Path, where: str) -> ModuleType:
    if not path.is_file():
        raise InputError(f"task {where}", f"there is no file {path} below {Path.cwd()}", "check the path")
    name = f"drivetrain_task_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Registered, and its folder importable, so that the task's own imports and pickled classes are found.
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def _import(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise InputError(
            f"task {where}",
            f"there is no module {name}",
            "install it, or name a file: path/to/file.py:function",
        ) from error
