"""The shape of a GPT, and what follows from it alone: parameters and FLOPs."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.spec.errors import InputError


@dataclass(frozen=True, kw_only=True)
class GptConfig:
    """The shape of a decoder-only transformer.

    Attributes:
        width: of the residual stream; a head has width / num_heads of it, an even number.
        num_kv_heads: heads of keys and values, each shared by num_heads / num_kv_heads heads of queries;
            None: as many as there are.
        ffn_width: of SwiGLU's inner layer; None: 8/3 of the width, rounded up to a multiple of 64, which
            makes its three matrices as large as the two of a four times wider plain one (Shazeer 2020,
            2002.05202).
        vocab_multiple: the embedding has rows up to the next multiple of this. Matrix units want multiples
            of 64, and a tensor-parallel head one of its ranks. The rows added are never predicted.
        max_sequence_length: positions that there are rotations for.
        tied: the embedding is also the output's matrix.
        loss_chunk_tokens: tokens whose logits are held at once, in fp32, when the loss is computed.
    """

    num_layers: int
    width: int
    num_heads: int
    vocab_size: int
    max_sequence_length: int
    num_kv_heads: int | None = None
    ffn_width: int | None = None
    vocab_multiple: int = 64
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    tied: bool = True
    loss_chunk_tokens: int = 4096

    def __post_init__(self) -> None:
        faults = [*self._faults_of_counts()] or [*self._faults_of_shape()]
        if faults:
            raise InputError("a gpt of this shape", "; ".join(faults), "change model.kwargs accordingly")

    def _faults_of_counts(self) -> list[str]:
        whole = [f.name for f in dataclasses.fields(self) if str(f.type).startswith("int")]
        values = {name: getattr(self, name) for name in whole}
        return [
            f"{name} is {value!r}, not a whole number of at least 1"
            for name, value in values.items()
            if not (value is None and name in ("num_kv_heads", "ffn_width"))
            and (not isinstance(value, int) or isinstance(value, bool) or value < 1)
        ] + [
            f"{name} is {value!r}, not above 0"
            for name, value in (("rope_theta", self.rope_theta), ("norm_eps", self.norm_eps))
            if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0
        ]

    def _faults_of_shape(self) -> list[str]:
        faults = []
        if self.width % self.num_heads or (self.width // self.num_heads) % 2:
            faults.append(f"width {self.width} over {self.num_heads} heads is no even number for each")
        if self.num_heads % self.kv_heads:
            faults.append(f"{self.num_heads} heads cannot share {self.kv_heads} heads of keys and values")
        return faults

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, Any], **defaults: Any) -> GptConfig:
        """A shape from what a run file says.

        Raises:
            InputError: a name that there is not, or one that is missing; names the nearest.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        faults = []
        for name in kwargs:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                faults.append(f"there is no {name}" + (f" (did you mean {near[0]}?)" if near else ""))
        values = {**defaults, **{name: value for name, value in kwargs.items() if name in known}}
        missing = [n for n, f in known.items() if f.default is dataclasses.MISSING and n not in values]
        faults += [f"{name} is missing" for name in missing]
        if faults:
            raise InputError("model.kwargs of a gpt", "; ".join(faults), f"it takes {', '.join(known)}")
        return cls(**values)

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads

    @property
    def kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def inner_width(self) -> int:
        return _round_up(8 * self.width / 3, 64) if self.ffn_width is None else self.ffn_width

    @property
    def padded_vocab_size(self) -> int:
        return _round_up(self.vocab_size, self.vocab_multiple)


def num_parameters(config: GptConfig) -> int:
    """Parameters, a tied embedding counted once, the rows that pad the vocabulary included."""
    table = config.padded_vocab_size * config.width
    norms = (2 * config.num_layers + 1) * config.width
    return config.num_layers * _layer_matrices(config) + norms + table * (1 if config.tied else 2)


def flops_per_token(config: GptConfig, sequence_length: int) -> float:
    """Floating-point operations to train on one token (forward and backward, nothing recomputed).

    6 for each weight that a token is multiplied with, and 12 · layers · width · length for attention's two
    products: Chowdhery et al. 2022 (PaLM, 2204.02311), appendix B. As there, attention is counted in full
    although a causal kernel leaves out half; norms, rotations, softmax and the look-up in the embedding are
    not counted.
    """
    weights = config.num_layers * _layer_matrices(config) + config.padded_vocab_size * config.width
    return 6.0 * weights + 12.0 * config.num_layers * config.width * sequence_length


def _layer_matrices(config: GptConfig) -> int:
    attention = 2 * config.width * config.head_width * (config.num_heads + config.kv_heads)
    return attention + 3 * config.width * config.inner_width


def _round_up(number: float, multiple: int) -> int:
    return int(-(-number // multiple)) * multiple
