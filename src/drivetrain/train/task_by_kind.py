"""The task that a run file means: one's own, or by the kind of data."""

from __future__ import annotations

import importlib

from drivetrain.config.schema import RunConfig
from drivetrain.spec.errors import InputError
from drivetrain.train.task import Task, load_task

# Kind of data → the function that makes the task, imported on use.
_WHERE = {
    "digits": "drivetrain.train.classification:classification_task",
    "image_folder": "drivetrain.train.classification:classification_task",
    "synthetic": "drivetrain.train.classification:classification_task",
    "text": "drivetrain.train.language:language_task",
}


def task_of(config: RunConfig) -> Task:
    """The task of `config`.

    Raises:
        InputError: there is none, or its data or model cannot be had.
    """
    if config.task is not None:
        return load_task(config.task, config)
    if config.data.kind not in _WHERE:
        raise InputError(
            f"data.kind {config.data.kind}",
            "only a task of your own brings its data",
            "--task my_task.py:build",
        )
    module, function = _WHERE[config.data.kind].split(":")
    task: Task = getattr(importlib.import_module(module), function)(config)
    return task
