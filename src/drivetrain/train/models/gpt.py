"""GPT: a decoder-only transformer, whole or one stage of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from drivetrain.engine.tensor_plan import TensorPlan
from drivetrain.spec.errors import InputError
from drivetrain.train.models.gpt_blocks import Block, Rope, linear
from drivetrain.train.models.gpt_config import GptConfig
from drivetrain.train.models.token_loss import chunked_cross_entropy, cross_entropy_of_logits

_INIT_STD = 0.02  # of GPT-2 and most models since


class Gpt(nn.Module):
    """Pre-norm layers with RMSNorm, rotary positions, grouped-query attention and SwiGLU.

    A strategy finds `embed`, `blocks` (a ModuleDict by the layer's number, so that a stage's parameters keep
    the whole model's names), `norm` and `head`; embed, norm and head are None where another stage has them.

    Built on the meta device it holds nothing; afterwards `to_empty(device=…)` and `init_weights(seed)` give
    the weights that building it directly after `torch.manual_seed(seed)` gives.
    """

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = config
        device = torch.get_default_device()
        rows, width = config.padded_vocab_size, config.width
        rope = Rope(config)
        self.embed: nn.Embedding | None = nn.utils.skip_init(  # type: ignore[no-untyped-call]
            nn.Embedding, rows, width, device=device
        )
        self.blocks = nn.ModuleDict({str(i): Block(config, rope) for i in range(config.num_layers)})
        self.norm: nn.RMSNorm | None = nn.RMSNorm(width, eps=config.norm_eps)
        self.head: nn.Linear | None = linear(width, rows)
        self.tie_weights()
        if device.type != "meta":
            self.init_weights()

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits, losses, or what the next stage goes on from.

        Args:
            x: (B, length) int64, tokens; without an embedding (B, length, width), the stage before's output.
            targets: (B, length) int64, the tokens to predict, -100 for none. A stage without a head ignores
                them.

        Returns:
            With targets (B,) float32, each sequence's SUM of token losses, the logits never held as a whole;
            without (B, length, vocab_size), logits; without a head (B, length, width).
        """
        length = x.shape[1]
        if length > self.config.max_sequence_length:
            raise InputError(
                f"a gpt on sequences of {length} tokens",
                f"its max_sequence_length is {self.config.max_sequence_length}",
                f"set model.kwargs.max_sequence_length to {length}, or leave it to data.sequence_length",
            )
        hidden: Tensor = self.embed(x) if self.embed is not None else x
        for block in self.blocks.values():
            hidden = block(hidden)
        if self.head is None or self.norm is None:
            return hidden
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

    # -- stages -------------------------------------------------------------------------------------------

    def keep_stage(self, layers: range, *, embed: bool, head: bool) -> Gpt:
        """Makes this model one stage, in place: of the layers `layers`, with the embedding or not, with the
        last norm and the head or not. Cheap on the meta device. Returns itself."""
        for name in list(self.blocks):
            if int(name) not in layers:
                del self.blocks[name]
        if not embed:
            self.embed = None
        if not head:
            self.norm = self.head = None
        return self

    @property
    def is_tied_across_stages(self) -> bool:
        """Whether the one matrix of embedding and head now lives twice, in two stages: both start equal, but
        stay so only if their gradients are summed."""
        return self.config.tied and (self.embed is None) != (self.head is None)

    def tie_weights(self) -> None:
        """Makes embedding and head one parameter, if they are to be. `to_empty`, and a strategy that replaces
        parameters, part them: call it afterwards. `init_weights` does."""
        if self.config.tied and self.embed is not None and self.head is not None:
            self.head.weight = self.embed.weight

    # -- weights ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def init_weights(self, seed: int | None = None) -> None:
        """Draws all weights anew: normal with deviation 0.02, norms 1; what is added to the residual stream
        is drawn smaller by √(2 · layers), as that many terms add up (Radford et al. 2019, GPT-2, 2.3).

        Each parameter has a generator of its own, keyed by the seed and its name, on the CPU: a stage, a
        shard (DTensor) and a whole model get the same numbers, wherever they are. No rank communicates.

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
            # Wrappers put themselves into names; and a tied head alone in its stage is the embedding.
            plain = name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")
            is_embedding = self.config.tied and plain == "head.weight"
            yield ("embed.weight" if is_embedding else plain), parameter


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
