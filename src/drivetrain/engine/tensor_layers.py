"""Modules of which each tensor-parallel rank computes a part.

A module keeps its object and the names of its parameters; only its class is replaced by a subclass made here.
Parameters stay DTensors where they are listed, saved, clipped and updated, and are plain local tensors where
the module computes with them: no operation of a forward is dispatched by DTensor, and the exchanges are those
of `tensor_collectives`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from drivetrain.engine.tensor_collectives import TensorGroup, enter, gather_last_dim, leave
from drivetrain.spec.errors import InputError


class Split(nn.Module):
    """What is mixed into the class of every module with a part in it."""

    tensor_ranks: TensorGroup
    sums_input_gradient: bool
    """False in a region, which does it once for all."""

    def _entered(self, x: Tensor) -> Tensor:
        """`x` as it is computed with: in autocast's type, so that gradients are summed in it too."""
        if not self.sums_input_gradient:
            return x
        kind = x.device.type
        if x.dtype == torch.float32 and torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        return enter(x, self.tensor_ranks)


class Whole(Split):
    """Computed alike by each rank."""


class Inside(Split):
    """Whole parameters that work on a part: each rank's gradient is a summand."""


class Region(Split):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        def entered(item: Any) -> Any:
            return self._entered(item) if isinstance(item, Tensor) and item.is_floating_point() else item

        args = tuple(entered(item) for item in args)
        return super().forward(*args, **{name: entered(item) for name, item in kwargs.items()})


class ColumnLinear(Split):
    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) → (…, outputs / ranks)."""
        return F.linear(self._entered(x), self.weight, self.bias)


class RowLinear(Split):
    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs / ranks) → (…, outputs)."""
        out = leave(F.linear(x, self.weight), self.tensor_ranks)
        return out if self.bias is None else out + self.bias.to(out.dtype)


class VocabularyLinear(Split):
    """(…, inputs) → (…, rows). `drivetrain.train.models.token_loss` does without the whole output."""

    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        return gather_last_dim(F.linear(self._entered(x), self.weight, self.bias), self.tensor_ranks)


class VocabularyEmbedding(Split):
    weight: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        """(…) int64 → (…, width): one rank has the row, the others add zeros."""
        num_rows = self.weight.shape[0]
        rows = tokens - self.tensor_ranks.rank * num_rows
        is_elsewhere = (rows < 0) | (rows >= num_rows)
        found = F.embedding(rows.masked_fill(is_elsewhere, 0), self.weight)
        return leave(found.masked_fill(is_elsewhere[..., None], 0.0), self.tensor_ranks)


class PackedLinear(Split):
    """Queries, keys and values of all heads, (3 · width, inputs), of which each rank computes its heads'."""

    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) → (…, 3 · width / ranks)."""
        bias = None if self.bias is None else own_heads(self.bias, self.tensor_ranks)
        return F.linear(self._entered(x), own_heads(self.weight, self.tensor_ranks), bias)


class AttentionHeads(Split):
    """nn.MultiheadAttention on batches first, as vision transformers use it."""

    num_heads: int
    dropout: float
    in_proj_weight: Tensor
    in_proj_bias: Tensor | None
    out_proj: nn.Module

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, need_weights: bool = True, **options: Any
    ) -> tuple[Tensor, None]:
        """(B, length, width) three times → the same, and no weights.

        Raises:
            InputError: masks or weights are wanted.
        """
        asked = [name for name, option in options.items() if option is not None and option is not False]
        if need_weights or asked:
            found = f"it is called with {', '.join(asked) or 'need_weights=True'}"
            raise InputError("tensor-parallel nn.MultiheadAttention", found, "replicate it in tensor_plan()")
        bias = self.in_proj_bias
        weights = own_heads(self.in_proj_weight, self.tensor_ranks).chunk(3)
        biases = (None,) * 3 if bias is None else own_heads(bias, self.tensor_ranks).chunk(3)
        # One sum for self-attention, whose three inputs are one.
        inputs = {id(x): x for x in (query, key, value)}
        sources = {place: self._entered(x) for place, x in inputs.items()}
        heads = [
            _split_heads(F.linear(sources[id(x)], weight, bias), self.num_heads // self.tensor_ranks.size)
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        ]
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], dropout_p=dropout)
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), None


def own_heads(packed: Tensor, ranks: TensorGroup) -> Tensor:
    """(3 · n, …) → (3 · n / ranks, …): this rank's queries, keys and values. Every rank's gradient is a
    summand, zero for the others' heads."""
    whole = enter(packed, ranks)
    parts = whole.view(3, ranks.size, whole.shape[0] // (3 * ranks.size), *whole.shape[1:])
    return parts[:, ranks.rank].flatten(0, 1)


def _split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, length, heads · width) → (B, heads, length, width)."""
    return x.view(*x.shape[:-1], num_heads, x.shape[-1] // num_heads).transpose(1, 2)


def become(module: nn.Module, kind: type[Split], ranks: TensorGroup, *, sums_input_gradient: bool) -> None:
    """Makes `module` one of `kind`, in place."""
    names = tuple(name for name, parameter in module._parameters.items() if parameter is not None)
    module.__class__ = _mixed(kind, module.__class__, names)
    module.tensor_ranks = ranks  # type: ignore[assignment]
    module.sums_input_gradient = sums_input_gradient  # type: ignore[assignment]


# One class for all modules of a class, since blocks are found by their class.
_MIXED: dict[tuple[type[Split], type[nn.Module], tuple[str, ...]], type[nn.Module]] = {}


def _mixed(kind: type[Split], base: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    if (kind, base, names) not in _MIXED:
        local = _local_summed if issubclass(kind, Inside) else _local
        properties = {name: property(functools.partial(local, name)) for name in names}
        _MIXED[kind, base, names] = type(f"{kind.__name__}{base.__name__}", (kind, base), properties)
    return _MIXED[kind, base, names]


def _local(name: str, module: nn.Module) -> Any:
    parameter: Any = module._parameters[name]
    # A parameter that FSDP has in shards just now lies on the whole mesh. Nobody computes with it, but FSDP
    # asks for it by its name.
    is_gathered = isinstance(parameter, DTensor) and parameter.device_mesh.ndim == 1
    return parameter.to_local() if is_gathered else parameter


def _local_summed(name: str, module: Split) -> Any:
    local = _local(name, module)
    return local if isinstance(local, DTensor) else enter(local, module.tensor_ranks)


def split_parameter(parameter: nn.Parameter, dim: int | None, mesh: DeviceMesh) -> nn.Parameter:
    """A parameter on the meta device as one of which each rank has a part along `dim`; None: all of it."""
    local = parameter.detach()
    if dim is not None:
        local = local.chunk(mesh.size(), dim)[mesh.get_local_rank()].contiguous()
    placement = Replicate() if dim is None else Shard(dim)
    split = DTensor.from_local(torch.empty_like(local), mesh, [placement], run_check=False)
    return nn.Parameter(split, requires_grad=parameter.requires_grad)
