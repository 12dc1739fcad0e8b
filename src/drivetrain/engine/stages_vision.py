"""Where the vision transformers of torchvision and timm can be cut."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from drivetrain.engine.stages import Cut


def vision_cut(module: nn.Module) -> Cut | None:
    """The cut of a vision transformer; None for any other model.

    Recognised by name, as neither library need be installed; subclasses may compute otherwise and are not.
    """
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    if kind == "torchvision.models.vision_transformer.VisionTransformer":
        return _torchvision(module)
    if kind == "timm.models.vision_transformer.VisionTransformer":
        return _timm(module)
    return None


def _torchvision(vit: Any) -> Cut:
    encoder = vit.encoder

    def before(images: Tensor) -> Tensor:
        patches = vit._process_input(images)
        tokens = torch.cat([vit.class_token.expand(patches.shape[0], -1, -1), patches], dim=1)
        hidden: Tensor = encoder.dropout(tokens + encoder.pos_embedding)
        return hidden

    def after(hidden: Tensor) -> Tensor:
        logits: Tensor = vit.heads(encoder.ln(hidden)[:, 0])
        return logits

    return Cut(
        layers=tuple(f"encoder.layers.{name}" for name, _ in encoder.layers.named_children()),
        first=("class_token", "conv_proj", "encoder.pos_embedding"),
        last=("encoder.ln", "heads"),
        before=before,
        after=after,
    )


def _timm(vit: Any) -> Cut:
    def before(images: Tensor) -> Tensor:
        tokens = vit.patch_drop(vit._pos_embed(vit.patch_embed(images)))
        hidden: Tensor = vit.norm_pre(tokens)
        return hidden

    def after(hidden: Tensor) -> Tensor:
        logits: Tensor = vit.forward_head(vit.norm(hidden))
        return logits

    layers = tuple(f"blocks.{name}" for name, _ in vit.blocks.named_children())
    outside = {name.split(".")[0] for name, _ in vit.named_parameters()} - {"blocks"}
    at_end = {"norm", "fc_norm", "attn_pool", "head"} & outside
    return Cut(
        layers=layers,
        first=tuple(sorted(outside - at_end)),
        last=tuple(sorted(at_end)),
        before=before,
        after=after,
    )
