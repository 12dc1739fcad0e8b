"""Models on the small points that tensor parallelism splits: by what it knows of them, or their own plan."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def torchvision_vit() -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    shape = {"image_size": 6, "patch_size": 3, "num_layers": 2, "num_heads": 4, "hidden_dim": 32}
    model = VisionTransformer(**shape, mlp_dim=64, num_classes=2)
    model.conv_proj = nn.Conv2d(1, 32, 3, 3)
    nn.init.normal_(model.heads.head.weight)  # zeros would let no gradient pass in the first step
    return model


def timm_vit(**options: Any) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    shape = {"img_size": 6, "patch_size": 3, "in_chans": 1, "depth": 2, "num_heads": 4, "embed_dim": 32}
    model: nn.Module = VisionTransformer(**shape, num_classes=2, **options)
    return model


class Planned(nn.Module):
    """A model that says itself how it is split, with a norm that each rank applies to its part."""

    def __init__(self, *, inner: int = 64, plan: dict[str, str] | None = None) -> None:
        super().__init__()
        self.inside = nn.LayerNorm(8)
        self.up = nn.Linear(36, inner)
        self.down = nn.Linear(inner, 32)
        self.head = nn.Linear(32, 2)
        self._plan = plan or {"inside": "inside", "up": "column", "down": "row", "head": "vocabulary"}

    def tensor_plan(self) -> dict[str, str]:
        return self._plan

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.relu(self.up(x.flatten(1))).unflatten(1, (-1, 8))
        out: Tensor = self.head(torch.tanh(self.down(self.inside(parts).flatten(1))))
        return out
