"""What goes into a checkpoint: tensors for DCP, everything else as JSON. Nothing is ever pickled."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from drivetrain.engine.buffers import local_buffers
from drivetrain.engine.state import TrainState
from drivetrain.engine.world import World
from drivetrain.spec.errors import CheckpointError

_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def tensors_of(state: TrainState) -> dict[str, Tensor]:
    """The tensors that all ranks share under their checkpoint names: `model.*`, `optim.*`, `ema.*`.

    Names are those of the bare module, so that any strategy can read what another wrote. Called by all ranks;
    the tensors are the live ones, and loading copies into them.
    """
    model: dict[str, Any] = dict(get_model_state_dict(state.module))
    tensors: dict[str, Tensor] = {f"model.{name}": t for name, t in model.items()}
    flat = _flat_optimizer_state(state)
    tensors |= {f"optim.{name}": value for name, value in flat.items() if isinstance(value, Tensor)}
    if state.ema is not None:
        tensors |= {f"ema.{name}": value for name, value in state.ema.weights.items()}
    return tensors


def own_buffers_of(state: TrainState, world: World) -> dict[str, Tensor]:
    """Copies of this rank's own running statistics, as `rank.N.buffer.*`; empty on one rank, where the
    model's are its own."""
    if world.size == 1:
        return {}
    own = local_buffers(state.module)
    return {f"rank.{world.rank}.buffer.{name}": buffer.detach().clone() for name, buffer in own.items()}


def _flat_optimizer_state(state: TrainState) -> dict[str, Any]:
    """The optimizer's state, one level deep: `state.<parameter>.<slot>`, `param_groups.<…>.<option>`."""
    return dict(get_optimizer_state_dict(state.module, state.optimizer, options=_FLAT))


def scalars_of(state: TrainState) -> dict[str, Any]:
    """Everything of the state that is no tensor, as JSON values.

    Raises:
        CheckpointError: the optimizer holds something that JSON cannot.
    """
    flat = _flat_optimizer_state(state)
    options = {name: value for name, value in flat.items() if not isinstance(value, Tensor)}
    for name, value in options.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise CheckpointError(
                f"the optimizer's state {name!r}",
                f"it is a {type(value).__name__}, which is neither a tensor nor a JSON value",
                "keep such state in tensors",
            ) from error
    return {
        "step": state.step,
        "position": state.position,
        "optimizer": type(state.optimizer).__name__,
        "optimizer_options": options,
        "scaler": state.scaler.state_dict() if state.scaler is not None else None,
        "ema_updates": state.ema.num_updates if state.ema is not None else None,
    }


# What a user sets on an optimizer, and may set otherwise for the rest of a run. Whatever else stands in its
# parameter groups is state of its own (a counter, say) and goes on as it was.
_HYPERPARAMETERS = {
    *("lr", "weight_decay", "momentum", "dampening", "nesterov", "betas", "eps", "amsgrad", "maximize"),
    *("foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"),
}


def restore(state: TrainState, tensors: dict[str, Any], scalars: dict[str, Any]) -> list[str]:
    """Puts loaded `tensors` (as `tensors_of` named them) and `scalars` into the state.

    The optimizer's hyperparameters are those of this run, not the saved ones; returns a note for each that
    differs.
    """
    model = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    set_model_state_dict(state.module, model)
    flat = {name.removeprefix("optim."): t for name, t in tensors.items() if name.startswith("optim.")}
    changed: dict[str, str] = {}
    for name, value in _flat_optimizer_state(state).items():
        if not isinstance(value, Tensor):
            saved = scalars["optimizer_options"].get(name, value)
            saved = tuple(saved) if isinstance(value, tuple) else saved
            option = name.rpartition(".")[2]
            flat[name] = value if option in _HYPERPARAMETERS else saved
            if saved != value and option in _HYPERPARAMETERS - {"lr"}:
                changed[option] = f"optimizer option {option} is {value} from here on; it was {saved}"
    set_optimizer_state_dict(state.module, state.optimizer, flat, options=_FLAT)
    if state.scaler is not None and scalars["scaler"] is not None:
        state.scaler.load_state_dict(scalars["scaler"])
    if state.ema is not None and scalars["ema_updates"] is not None:
        state.ema.num_updates = scalars["ema_updates"]
    state.step = scalars["step"]
    state.position = scalars["position"]
    return list(changed.values())


def restore_own_buffers(module: nn.Module, world: World, tensors: dict[str, Any]) -> None:
    """This rank's own running statistics, where the checkpoint was written by as many ranks."""
    with torch.no_grad():
        for name, buffer in local_buffers(module).items():
            saved = tensors.get(f"rank.{world.rank}.buffer.{name}")
            if saved is not None:
                buffer.copy_(saved)


def random_state(device: torch.device) -> dict[str, Any]:
    """This rank's generators: python, numpy, torch, and the GPU's."""
    version, numbers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(numbers), gauss],
        "numpy": [name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": _encode(torch.get_rng_state()),
    }
    if device.type == "cuda":
        state["cuda"] = _encode(torch.cuda.get_rng_state(device))
    return state


def restore_random_state(saved: dict[str, Any], device: torch.device) -> None:
    version, numbers, gauss = saved["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, position, has_gauss, cached = saved["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_decode(saved["torch"]))
    if device.type == "cuda" and "cuda" in saved:
        torch.cuda.set_rng_state(_decode(saved["cuda"]), device)


def _encode(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _decode(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
