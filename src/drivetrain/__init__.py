"""drivetrain: a PyTorch model from one GPU to many, as near to linear as the hardware allows.

Importing this imports nothing heavy: the names of the public API are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from drivetrain._version import __version__

if TYPE_CHECKING:
    from drivetrain.data.batch import MicroBatch
    from drivetrain.engine.objective import Objective, cross_entropy
    from drivetrain.engine.settings import CheckpointPolicy
    from drivetrain.spec.errors import (
        BadSampleError,
        CheckpointError,
        InputError,
        LoaderError,
        NonFiniteLossError,
    )
    from drivetrain.train.run import Run
    from drivetrain.train.task import Task
    from drivetrain.train.trainer import Trainer

_WHERE = {
    "BadSampleError": "drivetrain.spec.errors",
    "CheckpointError": "drivetrain.spec.errors",
    "CheckpointPolicy": "drivetrain.engine.settings",
    "InputError": "drivetrain.spec.errors",
    "LoaderError": "drivetrain.spec.errors",
    "MicroBatch": "drivetrain.data.batch",
    "NonFiniteLossError": "drivetrain.spec.errors",
    "Objective": "drivetrain.engine.objective",
    "Run": "drivetrain.train.run",
    "Task": "drivetrain.train.task",
    "Trainer": "drivetrain.train.trainer",
    "cross_entropy": "drivetrain.engine.objective",
}

__all__ = [
    "BadSampleError",
    "CheckpointError",
    "CheckpointPolicy",
    "InputError",
    "LoaderError",
    "MicroBatch",
    "NonFiniteLossError",
    "Objective",
    "Run",
    "Task",
    "Trainer",
    "__version__",
    "cross_entropy",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'drivetrain' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__
