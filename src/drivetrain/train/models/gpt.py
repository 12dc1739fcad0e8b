"""GPT: a decoder-only transformer."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from drivetrain.engine.stages import Cut
from drivetrain.engine.tensor_plan import TensorPlan
from drivetrain.spec.errors import InputError
from drivetrain.train.models.gpt_blocks import Block, Rope, linear
from drivetrain.train.models.gpt_config import GptConfig
from drivetrain.train.models.token_loss import chunked_cross_entropy, cross_entropy_of_logits

_INIT_STD = 0.02  # of GPT-2 and most models since


class Gpt(nn.Module):
    """Pre-norm layers with RMSNorm, rotary positions, grouped-query attention and SwiGLU.

    A strategy finds `embed`, `blocks` (a ModuleDict by the layer's number), `norm` and `head`.

    Built on the meta device it holds nothing; afterwards `to_empty(device=…)` and `init_weights(seed)` give
    the weights that building it directly after `torch.manual_seed(seed)` gives.
    """

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = config
        device = torch.get_default_device()
        rows, width = config.padded_vocab_size, config.width
        rope = Rope(config)
        self.embed: nn.Embedding = nn.utils.skip_init(  # type: ignore[no-untyped-call]
            nn.Embedding, rows, width, device=device
        )
        self.blocks = nn.ModuleDict({str(i): Block(config, rope) for i in range(config.num_layers)})
        self.norm = nn.RMSNorm(width, eps=config.norm_eps)
        self.head = linear(width, rows)
        self.tie_weights()
        if device.type != "meta":
            self.init_weights()

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits or losses.

        Args:
            x: (B, length) int64, tokens.
            targets: (B, length) int64, the tokens to predict, -100 for none.

        Returns:
            With targets (B,) float32, each sequence's SUM of token losses, the logits never held as a whole;
            without (B, length, vocab_size), logits.
        """
        hidden = self._embedded(x)
        for block in self.blocks.values():
            hidden = block(hidden)
        return self._finished(hidden, targets)

    def _embedded(self, x: Tensor, targets: Tensor | None = None) -> Tensor:  # noqa: ARG002 - a stage's input
        """(B, length) → (B, length, width): what comes before the layers."""
        length = x.shape[1]
        if length > self.config.max_sequence_length:
            raise InputError(
                f"a gpt on sequences of {length} tokens",
                f"its max_sequence_length is {self.config.max_sequence_length}",
                f"set model.kwargs.max_sequence_length to {length}, or leave it to data.sequence_length",
            )
        hidden: Tensor = self.embed(x)
        return hidden

    def _finished(self, hidden: Tensor, targets: Tensor | None = None) -> Tensor:
        """(B, length, width) → what `forward` returns: what comes after the layers."""
        hidden = self.norm(hidden)
        if targets is None:
            logits: Tensor = self.head(hidden)
            return logits[..., : self.config.vocab_size]
        return self._token_losses(self.head, hidden, targets).sum(dim=1)

    def _token_losses(self, head: nn.Linear, hidden: Tensor, targets: Tensor) -> Tensor:
        config = self.config
        # Asked by an attribute of DTensor's: importing the class takes seconds. A sharded head is called
        # through its own hooks, which alone know its layout.
        if hasattr(head.weight, "device_mesh"):
            logits = head(hidden)[..., : config.vocab_size]
            return cross_entropy_of_logits(logits, targets, chunk_tokens=config.loss_chunk_tokens)
        return chunked_cross_entropy(
            hidden,
            head.weight,
            targets,
            vocab_size=config.vocab_size,
            chunk_tokens=config.loss_chunk_tokens,
            ranks=getattr(head, "tensor_ranks", None),
        )

    def tensor_plan(self) -> TensorPlan:
        """How tensor-parallel ranks share it: heads, the inner width of SwiGLU, and the vocabulary."""
        config = self.config
        return TensorPlan(
            layers={
                "embed": "vocabulary",
                "head": "vocabulary",
                "blocks.*.attention": "region",
                "blocks.*.attention.out": "row",
                "blocks.*.attention.*": "column",
                "blocks.*.ffn": "region",
                "blocks.*.ffn.down": "row",
                "blocks.*.ffn.*": "column",
                "*norm": "replicate",
            },
            divided={"heads": config.num_heads, "heads of keys and values": config.kv_heads},
        )

    def pipeline_cut(self) -> Cut:
        """Where a pipeline can cut it: between layers."""
        return Cut(
            layers=tuple(f"blocks.{name}" for name in self.blocks),
            first=("embed",),
            last=("norm", "head"),
            before=self._embedded,
            after=self._finished,
        )

    def tie_weights(self) -> None:
        """Makes embedding and head one parameter, if they are to be. `to_empty`, and a strategy that replaces
        parameters, part them: call it afterwards. `init_weights` does."""
        if self.config.tied:
            self.head.weight = self.embed.weight

    # -- weights ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def init_weights(self, seed: int | None = None) -> None:
        """Draws all weights anew: normal with deviation 0.02, norms 1; what is added to the residual stream
        is drawn smaller by √(2 · layers), as that many terms add up (Radford et al. 2019, GPT-2, 2.3).

        Each parameter has a generator of its own, keyed by the seed and its name, on the CPU: a shard
        (DTensor) and a whole model get the same numbers, wherever they are. No rank communicates.

        Args:
            seed: None takes that of the last `torch.manual_seed`.
        """
        self.tie_weights()
        seed = torch.initial_seed() if seed is None else seed
        for name, parameter in self._weights_by_name():
            if parameter.is_meta:
                raise RuntimeError(f"init_weights on the meta device ({name}): call to_empty first")
            if parameter.ndim == 1:
                parameter.fill_(1.0)
                continue
            is_added = name.endswith(("attention.out.weight", "ffn.down.weight"))
            std = _INIT_STD / math.sqrt(2 * self.config.num_layers) if is_added else _INIT_STD
            _copy(parameter, _normal(tuple(parameter.shape), std, seed, name))
        for module in self.modules():
            if isinstance(module, Rope):
                module.reset_parameters()

    def _weights_by_name(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in self.named_parameters():
            # Wrappers put themselves into names.
            yield name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", ""), parameter


def _normal(shape: tuple[int, ...], std: float, seed: int, name: str) -> Tensor:
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    generator = torch.Generator(device="cpu").manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.empty(shape, device="cpu").normal_(0.0, std, generator=generator)


def _copy(parameter: nn.Parameter, values: Tensor) -> None:
    """Fills `parameter`, or this rank's shard of it."""
    if hasattr(parameter, "device_mesh"):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(parameter, DTensor)
        # src_data_rank None: all ranks have drawn the same values, so nothing is sent.
        mesh, placements = parameter.device_mesh, parameter.placements
        values = distribute_tensor(values.to(parameter.device), mesh, placements, src_data_rank=None)
    parameter.copy_(values)
