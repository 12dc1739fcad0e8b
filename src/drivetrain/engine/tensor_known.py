"""Tensor plans of models that say nothing themselves: the vision transformers of torchvision and timm.

Only the structure of their classes is known here; neither library is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from drivetrain.engine.tensor_plan import TensorPlan
from drivetrain.spec.errors import InputError


def plan_of(module: nn.Module) -> TensorPlan:
    """The plan of `module`: its own, or what is known of its class.

    Raises:
        InputError: there is none.
    """
    own: Any = getattr(module, "tensor_plan", None)
    if callable(own):
        plan = own()
        return plan if isinstance(plan, TensorPlan) else TensorPlan(layers=_checked(module, plan))
    for base in type(module).__mro__:
        known = _KNOWN.get(f"{base.__module__}.{base.__qualname__}")
        if known is not None:
            return known(module)
    raise InputError(
        f"tensor parallelism (tp) of a {type(module).__name__}",
        "nothing is known of how its layers can be split",
        "leave tp out, under fsdp or ddp; or give it a method tensor_plan() (drivetrain.engine.tensor_plan)",
    )


def _checked(module: nn.Module, layers: Any) -> Mapping[str, str]:
    if not isinstance(layers, Mapping):
        found = f"it returned a {type(layers).__name__}"
        raise InputError(f"{type(module).__name__}.tensor_plan()", found, "return a TensorPlan, or a mapping")
    return layers


def _torchvision_vit(module: Any) -> TensorPlan:
    heads = {
        f"heads of {name}": part.num_heads
        for name, part in module.named_modules()
        if isinstance(part, nn.MultiheadAttention)
    }
    return TensorPlan(
        layers={
            "encoder.layers.*.self_attention": "attention",
            "encoder.layers.*.self_attention.out_proj": "row",
            "encoder.layers.*.mlp": "region",
            "encoder.layers.*.mlp.0": "column",
            "encoder.layers.*.mlp.3": "row",
            "*": "replicate",
        },
        divided=heads,
    )


def _timm_vit(module: Any) -> TensorPlan:
    """Block by block: timm's options change what stands in a block."""
    layers: dict[str, str] = {}
    divided: dict[str, int] = {}
    whole = []
    for name, part in module.named_modules():
        if _is(part, "timm.layers.mlp.Mlp") and isinstance(part.fc1, nn.Linear) and _is_plain(part.norm):
            layers |= {name: "region", f"{name}.fc1": "column", f"{name}.fc2": "row"}
        elif _is(part, "timm.layers.attention.Attention") and hasattr(part, "attn_dim"):
            if not _is_plain(getattr(part, "norm", None)):
                whole.append(name)
                continue
            layers |= {name: "region", f"{name}.qkv": "packed", f"{name}.gate": "column"}
            layers |= {f"{name}.proj": "row", f"{name}.?_norm": "inside"}
            divided[f"heads of {name}"] = part.num_heads
        elif hasattr(part, "qkv") or hasattr(part, "q_proj"):
            whole.append(name)
    notes = (
        (f"{len(whole)} attention layers ({whole[0]}, …) are not split: each rank computes them whole",)
        if whole
        else ()
    )
    return TensorPlan(layers={**layers, "*": "replicate"}, divided=divided, notes=notes)


def adapt_heads(module: nn.Module, size: int) -> None:
    """timm's attention counts its heads by itself: each rank has fewer of them."""
    part: Any = module
    if _is(module, "timm.layers.attention.Attention"):
        part.num_heads //= size
        part.attn_dim //= size


def _is(part: nn.Module, name: str) -> bool:
    return any(f"{base.__module__}.{base.__qualname__}" == name for base in type(part).__mro__)


def _is_plain(norm: object) -> bool:
    """Nothing in its place: a norm over a width that is split would need the other ranks'."""
    return norm is None or isinstance(norm, nn.Identity)


_KNOWN: dict[str, Callable[[Any], TensorPlan]] = {
    "torchvision.models.vision_transformer.VisionTransformer": _torchvision_vit,
    "timm.models.vision_transformer.VisionTransformer": _timm_vit,
}
