"""How a model is cut into the stages of a pipeline.

A model says where it can be cut by a method `pipeline_cut()` that returns a `Cut`; `nn.Sequential`s and the
vision transformers of torchvision and timm need none (`engine/stages_of_models.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from drivetrain.engine.stages_balance import balance
from drivetrain.spec.errors import InputError


def _first_input(hidden: Any, *others: Any) -> Any:  # noqa: ARG001 - what a loss may want of the inputs
    return hidden


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A model as a row of layers, with something before and after them.

        hidden = before(*inputs)
        for name in layers:
            hidden = model.get_submodule(name)(hidden)
        output = after(hidden, *inputs[1:])

    must be what the model's own forward computes. `hidden` is a floating-point tensor, or a tuple of such,
    whose shape depends on the inputs' shapes alone.

    Attributes:
        layers: names of modules, in the order in which they compute; each is called with `hidden` alone.
        first, last: names of the modules and parameters that `before` and `after` use. Every name of a
            parameter belongs to one of layers, `first` and `last`.
        before, after: methods of the model. Inputs that are a dict are passed by name, `hidden` taking the
            place of the first.
    """

    layers: tuple[str, ...]
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    before: Callable[..., Any] = _first_input
    after: Callable[..., Any] = _first_input

    @property
    def parts(self) -> tuple[str, ...]:
        return (*self.first, *self.layers, *self.last)


@dataclass(frozen=True, kw_only=True)
class StagePart:
    """What one stage has of a model: names, as in `Cut`."""

    index: int
    layers: tuple[str, ...]
    is_first: bool
    is_last: bool

    def parts(self, cut: Cut) -> tuple[str, ...]:
        return (*(cut.first if self.is_first else ()), *self.layers, *(cut.last if self.is_last else ()))


def plan_stages(module: nn.Module, cut: Cut, num_stages: int) -> tuple[StagePart, ...]:
    """Spreads the layers of a model over stages so that the costliest costs least.

    A part's cost is the number of its parameters: in networks of matrix products, what it computes for one
    token or patch. A table that is only looked up (nn.Embedding before the layers) costs nothing; a head
    costs its matrix, so that the last stage of a language model has fewer layers. Convolutions on images that
    shrink cost more than this says.

    Raises:
        InputError: there are fewer layers with parameters than stages.
    """
    units = _units(module, cut.layers)
    if len(units) < num_stages:
        raise InputError(
            f"a pipeline of {num_stages} stages",
            f"the {type(module).__name__} has {len(units)} layers with parameters to spread over them",
            f"use at most {len(units)} stages (--mesh.pp, --pipeline.stages-per-rank)",
        )
    before = sum(_cost(module, name, looks_up=True) for name in cut.first)
    after = sum(_cost(module, name) for name in cut.last)
    costs = [sum(_cost(module, name) for name in unit) for unit in units]
    bounds = balance(costs, num_stages, before=before, after=after)
    return tuple(
        StagePart(
            index=index,
            layers=tuple(name for unit in units[start:stop] for name in unit),
            is_first=index == 0,
            is_last=index == num_stages - 1,
        )
        for index, (start, stop) in enumerate(bounds)
    )


def _units(module: nn.Module, layers: Sequence[str]) -> list[list[str]]:
    """The layers in groups that each have parameters: what has none goes with the layer before it."""
    units: list[list[str]] = []
    for name in layers:
        if not units or (_cost(module, name) and _cost(module, *units[-1])):
            units.append([name])
        else:
            units[-1].append(name)
    return units if units and _cost(module, *units[-1]) else units[:-1]


def _cost(module: nn.Module, *names: str, looks_up: bool = False) -> int:
    total = 0
    for name in names:
        owner, _, leaf = name.rpartition(".")
        part: Any = getattr(module.get_submodule(owner), leaf)
        if isinstance(part, nn.Module):
            tables = {id(m) for m in part.modules() if isinstance(m, nn.Embedding)} if looks_up else set()
            inner = (p for m in part.modules() if id(m) not in tables for p in m.parameters(recurse=False))
            total += sum(p.numel() for p in inner)
        else:
            total += part.numel()
    return total


def belongs(name: str, part: str) -> bool:
    """Whether the parameter `name` is `part` or in it."""
    return name == part or name.startswith(f"{part}.")


def aliases_of(module: nn.Module) -> dict[str, list[str]]:
    """The names of each parameter, by the first of them: several where it is tied."""
    first: dict[int, str] = {}
    names: dict[str, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(first.setdefault(id(parameter), name), []).append(name)
    return names


def keep_stages(module: nn.Module, cut: Cut, stages: Iterable[StagePart]) -> None:
    """Takes from `module` what belongs to none of `stages`, in place; what is left keeps its names.

    A parameter tied to one that is kept stays under all its names: so it is called alike in every stage that
    has it, and its optimizer state and its copies in checkpoints too.
    """
    kept = {name for stage in stages for name in stage.parts(cut)}
    tied = set()
    for names in aliases_of(module).values():
        if any(belongs(name, part) for name in names for part in kept):
            tied.update(names)
    for part in cut.parts:
        if part not in kept:
            _take(module, part, tied)


def _take(module: nn.Module, name: str, tied: set[str]) -> None:
    parent, _, leaf = name.rpartition(".")
    owner = module.get_submodule(parent)
    if leaf in owner._parameters or leaf in owner._buffers:
        if name not in tied:
            (owner._parameters if leaf in owner._parameters else owner._buffers)[leaf] = None
        return
    part = owner.get_submodule(leaf)
    inside = {n for n, _ in part.named_parameters(prefix=name, remove_duplicate=False)}
    if inside & tied:
        for other in inside - tied:
            holder, _, attribute = other.rpartition(".")
            module.get_submodule(holder)._parameters[attribute] = None
    elif isinstance(owner, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        del owner._modules[leaf]
    else:
        owner._modules[leaf] = None
