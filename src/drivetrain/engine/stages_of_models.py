"""Where a model can be cut into stages: as it says itself, or as is known of its kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from drivetrain.engine.stages import Cut, belongs
from drivetrain.engine.stages_vision import vision_cut
from drivetrain.spec.errors import InputError


def cut_of(module: nn.Module) -> Cut:
    """Where `module` can be cut.

    Raises:
        InputError: nowhere that is known, or its layers compute otherwise in a pipeline.
    """
    asked = f"strategy pipeline for a {type(module).__name__}"
    for name, part in module.named_modules():
        if isinstance(part, _NormBase) and (part.track_running_stats or "Batch" in type(part).__name__):
            found = f"{name or 'it'} is a {type(part).__name__}, whose statistics are those of a micro-batch"
            raise InputError(asked, found, "use GroupNorm or LayerNorm, or another strategy")
    offered = getattr(module, "pipeline_cut", None)
    if callable(offered):
        cut = offered()
        if not isinstance(cut, Cut):
            found = f"its pipeline_cut() returned a {type(cut).__name__}"
            raise InputError(asked, found, "return a drivetrain.engine.stages.Cut")
    elif isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        cut = Cut(layers=tuple(_flat(module)))
    else:
        known = vision_cut(module)
        if known is None:
            raise InputError(
                asked,
                "nothing says where it can be cut",
                "make it a torch.nn.Sequential, or give it a method pipeline_cut() that returns a"
                " drivetrain.engine.stages.Cut (its docstring says of what)",
            )
        cut = known
    _check(module, cut, asked)
    return cut


def _flat(module: nn.Sequential, prefix: str = "") -> Iterable[str]:
    """Names of what a Sequential holds, those in Sequentials inside it one by one."""
    for name, child in module.named_children():
        if type(child) is nn.Sequential:
            yield from _flat(child, f"{prefix}{name}.")
        else:
            yield prefix + name


def _check(module: nn.Module, cut: Cut, asked: str) -> None:
    missing = [name for name in cut.parts if not _has(module, name)]
    if missing:
        raise InputError(
            asked, f"its cut names {missing[0]}, which it does not have", "correct pipeline_cut()"
        )
    owners = {
        name: sum(belongs(name, part) for part in cut.parts)
        for name, _ in module.named_parameters(remove_duplicate=False)
    }
    wrong = [name for name, count in owners.items() if count != 1]
    if wrong:
        found = f"{wrong[0]} belongs to {owners[wrong[0]] or 'no'} parts of its cut, and to one it must"
        raise InputError(asked, found, "correct pipeline_cut(): layers, first and last")


def _has(module: nn.Module, name: str) -> bool:
    owner: Any = module
    for part in name.split("."):
        owner = getattr(owner, part, None)
    return owner is not None
