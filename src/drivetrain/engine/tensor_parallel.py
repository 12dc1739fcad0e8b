"""Splits a model over tensor-parallel ranks by its plan."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from drivetrain.engine.tensor_collectives import TensorGroup
from drivetrain.engine.tensor_known import adapt_heads, plan_of
from drivetrain.engine.tensor_layers import (
    AttentionHeads,
    ColumnLinear,
    Inside,
    PackedLinear,
    Region,
    RowLinear,
    Split,
    VocabularyEmbedding,
    VocabularyLinear,
    Whole,
    become,
    split_parameter,
)
from drivetrain.engine.tensor_plan import INSIDE_REGION, WORDS, TensorPlan, check_degree
from drivetrain.spec.errors import InputError

_KINDS: dict[str, type[Split]] = {
    "column": ColumnLinear,
    "row": RowLinear,
    "packed": PackedLinear,
    "attention": AttentionHeads,
    "inside": Inside,
    "replicate": Whole,
    "region": Region,
}

# Along which dim a parameter is split; those not named are held whole.
_SPLIT_DIMS = {
    ("column", "weight"): 0,
    ("column", "bias"): 0,
    ("row", "weight"): 1,
    ("vocabulary", "weight"): 0,
    ("vocabulary", "bias"): 0,
}


def split_model(module: nn.Module, mesh: DeviceMesh, *, world_size: int) -> tuple[str, ...]:
    """Makes `module`, on the meta device, this rank's part of it, in place: every parameter becomes a DTensor
    on `mesh`. Nothing is exchanged, but all ranks of the mesh must call it. Returns notes for the user.

    Raises:
        InputError: the model has no plan, the plan does not fit it, or sizes do not divide.
    """
    plan = plan_of(module)
    ranks = TensorGroup(group=mesh.get_group(), rank=mesh.get_local_rank(), size=mesh.size())
    words = _words(module, plan)
    parts = dict(module.named_modules())
    check_degree({**plan.divided, **_split_sizes(parts, words)}, ranks.size, world_size)
    _replace_parameters(parts, words, mesh)
    regions = [name for name, word in words.items() if word == "region"]
    for name, word in words.items():
        # An attribute that is made local, not a class that is replaced, must be seen first.
        if word == "region":
            adapt_heads(parts[name], ranks.size)
        in_region = word in INSIDE_REGION and any(name.startswith(f"{region}.") for region in regions)
        become(parts[name], _kind(parts[name], word), ranks, sums_input_gradient=not in_region)
    return plan.notes


def _words(module: nn.Module, plan: TensorPlan) -> dict[str, str]:
    """By module: what the plan says of those that have parameters of their own, and of regions."""
    words, missing = {}, []
    for name, part in module.named_modules():
        word = plan.word_of(name)
        has_parameters = any(parameter is not None for parameter in part._parameters.values())
        if has_parameters and word is None:
            missing.append(name or "the model itself")
        elif word is not None and (has_parameters or word == "region"):
            _check_kind(name, part, word)
            words[name] = word
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        found = f"it says nothing of {', '.join(missing[:3])}{more}"
        do = 'name them, or end the plan with "*": "replicate"'
        raise InputError(f"{type(module).__name__}.tensor_plan()", found, do)
    return words


def _check_kind(name: str, part: nn.Module, word: str) -> None:
    problem = _problem(part, word)
    if problem is not None:
        asked = f"tensor_plan(): {name!r}: {word!r}, {WORDS[word]}"
        raise InputError(asked, f"it {problem}", 'say "replicate" of it, or give it no such option')


def _problem(part: Any, word: str) -> str | None:
    """Why `word` cannot be said of `part`; None if it can."""
    kinds = {
        **dict.fromkeys(("column", "row", "packed"), (nn.Linear,)),
        "vocabulary": (nn.Linear, nn.Embedding),
        "attention": (nn.MultiheadAttention,),
    }.get(word, (nn.Module,))
    if not isinstance(part, kinds):
        return f"is a {type(part).__name__}"
    if isinstance(part, nn.Embedding) and word == "vocabulary":
        options = ("max_norm", "padding_idx", "sparse", "scale_grad_by_freq")
        used = [name for name in options if getattr(part, name) not in (None, False)]
        return f"has {', '.join(used)} set" if used else None
    if isinstance(part, nn.MultiheadAttention) and word == "attention":
        is_plain = part._qkv_same_embed_dim and part.bias_k is None and not part.add_zero_attn
        return (
            None
            if is_plain and part.batch_first
            else "has kdim, vdim, bias_k or add_zero_attn, or no batch_first"
        )
    if word == "region" and any(parameter is not None for parameter in part._parameters.values()):
        return "has parameters of its own"
    return None


def _split_sizes(parts: dict[str, nn.Module], words: dict[str, str]) -> dict[str, int]:
    """By name: the sizes that are split."""
    sizes: dict[str, int] = {}
    for name, word in words.items():
        part: Any = parts[name]
        if word == "column":
            sizes[f"outputs of {name}"] = part.out_features
        elif word == "row":
            sizes[f"inputs of {name}"] = part.in_features
        elif word == "vocabulary":
            sizes[f"rows of {name}"] = part.weight.shape[0]
        elif word == "packed":
            sizes[f"outputs of {name} / 3"] = part.out_features // 3
    return sizes


def _replace_parameters(parts: dict[str, nn.Module], words: dict[str, str], mesh: DeviceMesh) -> None:
    """A parameter that two modules share stays one."""
    made: dict[int, tuple[nn.Parameter, int | None, nn.Parameter]] = {}
    for name, word in words.items():
        for key, parameter in parts[name]._parameters.items():
            if parameter is None:
                continue
            dim = _SPLIT_DIMS.get((word, key))
            if id(parameter) not in made:
                # The old parameter is kept beside the new one, so that its id is not given to another.
                made[id(parameter)] = (split_parameter(parameter, dim, mesh), dim, parameter)
            split, first_dim, _ = made[id(parameter)]
            if dim != first_dim:
                found = f"it shares {key} with a module that is split in another way"
                raise InputError(f"tensor_plan(): {name!r}: {word!r}", found, "name the same word for both")
            parts[name]._parameters[key] = split


def _kind(part: nn.Module, word: str) -> type[Split]:
    if word == "vocabulary":
        return VocabularyLinear if isinstance(part, nn.Linear) else VocabularyEmbedding
    return _KINDS[word]
