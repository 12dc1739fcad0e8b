"""Strategies by name, imported on use."""

from __future__ import annotations

import importlib

from drivetrain.engine.strategies.base import Strategy
from drivetrain.spec.errors import InputError

_WHERE = {
    "single": "drivetrain.engine.strategies.single:Single",
    "data_parallel": "drivetrain.engine.strategies.data_parallel:DataParallel",
    "ddp": "drivetrain.engine.strategies.ddp:Ddp",
    "fsdp": "drivetrain.engine.strategies.fsdp:Fsdp",
    "pipeline": "drivetrain.engine.strategies.pipeline:Pipeline",
    "tensor": "drivetrain.engine.strategies.fsdp:tensor",
}


def load_strategy(name: str) -> Strategy:
    """The strategy called `name`.

    Raises:
        InputError: there is no such strategy.
    """
    if name not in _WHERE:
        raise InputError(f"strategy {name!r}", "there is no such strategy", f"one of {', '.join(_WHERE)}")
    module, attribute = _WHERE[name].split(":")
    strategy: Strategy = getattr(importlib.import_module(module), attribute)()
    return strategy
