"""The parts of a GPT's layer: rotary positions, attention, SwiGLU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from drivetrain.train.models.gpt_config import GptConfig

# cuDNN's attention is 1.7 to 2.3 times as fast as FlashAttention-2 on Hopper (transformers#48163), and not
# faster before. What a backend cannot do (a head's width, fp32) falls to the next.
_ON_HOPPER = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
_BEFORE_HOPPER = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
_HOPPER = 9  # compute capability


def linear(num_inputs: int, num_outputs: int) -> nn.Linear:
    """A linear layer without bias, its weights not initialised: `Gpt.init_weights` does that, once."""
    # skip_init allocates on the CPU unless told, even inside `with torch.device("meta")`.
    device = torch.get_default_device()
    made: nn.Linear = nn.utils.skip_init(  # type: ignore[no-untyped-call]
        nn.Linear, num_inputs, num_outputs, bias=False, device=device
    )
    return made


class Rope(nn.Module):
    """Rotary position embedding (Su et al. 2021, 2104.09864): dims i and i + width/2 of a head are turned by
    position · theta^(−2i/width).

    One instance serves all layers. The angles' cosines and sines are buffers rather than arguments of the
    layers, since FSDP casts what a layer is called with to bf16, which far positions would not survive.
    """

    cosines: Tensor
    sines: Tensor

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self._config = config
        shape = (config.max_sequence_length, config.head_width // 2)
        self.register_buffer("cosines", torch.empty(shape), persistent=False)
        self.register_buffer("sines", torch.empty(shape), persistent=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Computes the angles; needed again after a move from the meta device."""
        if self.cosines.is_meta:
            return
        config = self._config
        with torch.device("cpu"):
            exponents = torch.arange(0, config.head_width, 2, dtype=torch.float64) / config.head_width
            positions = torch.arange(config.max_sequence_length, dtype=torch.float64)
            angles = torch.outer(positions, config.rope_theta**-exponents)
        self.cosines.copy_(angles.cos())
        self.sines.copy_(angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        """(…, length, head width) → the same, each position turned; computed in fp32."""
        length = x.shape[-2]
        cosines, sines = self.cosines[:length], self.sines[:length]
        first, second = x.float().chunk(2, dim=-1)
        turned = torch.cat((first * cosines - second * sines, first * sines + second * cosines), dim=-1)
        return turned.to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention; groups of query heads share keys and values (Ainslie et al. 2023, 2305.13245).

    The number of heads is read from the projections' outputs, so that it is the local one under tensor
    parallelism.
    """

    def __init__(self, config: GptConfig, rope: Rope) -> None:
        super().__init__()
        self._head_width = config.head_width
        self.query = linear(config.width, config.num_heads * config.head_width)
        self.key = linear(config.width, config.kv_heads * config.head_width)
        self.value = linear(config.width, config.kv_heads * config.head_width)
        self.out = linear(config.num_heads * config.head_width, config.width)
        self.rope = rope

    def forward(self, x: Tensor) -> Tensor:
        """(B, length, width) → the same."""
        query, key, value = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        mixed = causal_attention(self.rope(query), self.rope(key), value)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        """(B, length, heads · head width) → (B, heads, length, head width)."""
        return x.view(*x.shape[:-1], -1, self._head_width).transpose(1, 2)


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each position attends to itself and those before.

    Args:
        query: (B, heads, length, head width).
        key, value: (B, kv heads, length, head width); heads is a multiple of kv heads.
    """
    is_grouped = query.shape[1] != key.shape[1]
    with _fastest_first(query):
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=is_grouped)


def _fastest_first(x: Tensor) -> AbstractContextManager[None]:
    """torch's attention kernels in our order; set where attention is called, since a layer recomputed in the
    backward (activation checkpointing) must choose the same kernel."""
    if not x.is_cuda:
        return nullcontext()
    is_hopper = torch.cuda.get_device_properties(x.device).major >= _HOPPER
    return sdpa_kernel(_ON_HOPPER if is_hopper else _BEFORE_HOPPER, set_priority=True)


class SwiGlu(nn.Module):
    """down(silu(gate(x)) · up(x)) (Shazeer 2020, 2002.05202)."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.gate = linear(config.width, config.inner_width)
        self.up = linear(config.width, config.inner_width)
        self.down = linear(config.inner_width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """(…, width) → the same."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Block(nn.Module):
    """One layer: attention and SwiGLU, each behind a norm and added to the stream."""

    def __init__(self, config: GptConfig, rope: Rope) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.attention = Attention(config, rope)
        self.ffn_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.ffn = SwiGlu(config)

    def forward(self, x: Tensor) -> Tensor:
        """(B, length, width) → the same."""
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.ffn(self.ffn_norm(x))
        return out
