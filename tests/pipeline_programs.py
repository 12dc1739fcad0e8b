"""What ranks run in the tests of pipelines: models of other kinds, other shapes, mistakes in a loss."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import drivetrain as dt
from drivetrain.engine.optimizers import OptimizerSpec
from drivetrain.engine.stages import Cut


class Swap(nn.Module):
    """Takes two tensors and gives two."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, hidden: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        left, right = hidden
        return torch.tanh(self.linear(right)), left


class TwoStreams(nn.Module):
    """Called with a dict; two tensors go from layer to layer, one of them not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Swap() for _ in range(4))

    def before(self, images: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        pixels = images[:, 0, :4, :4]
        return pixels.flatten(1), pixels.transpose(1, 2).flatten(1)

    def after(self, hidden: tuple[Tensor, Tensor], scale: Tensor) -> Tensor:
        return scale[:, None] * (hidden[0] + hidden[1])[:, :2]

    def forward(self, images: Tensor, scale: Tensor) -> Tensor:
        hidden = self.before(images, scale)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.after(hidden, scale)

    def pipeline_cut(self) -> Cut:
        return Cut(layers=tuple(f"layers.{i}" for i in range(4)), before=self.before, after=self.after)


def _torchvision_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    shape = {
        "image_size": 8,
        "patch_size": 4,
        "num_layers": 4,
        "num_heads": 2,
        "hidden_dim": 8,
        "mlp_dim": 16,
    }
    return VisionTransformer(num_classes=2, **shape)


def _timm_vit() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    shape = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 4, "num_heads": 2}
    return VisionTransformer(num_classes=2, **shape)


def _sequential() -> nn.Module:
    widths = (3 * 64, 32, 16, 16)
    layers = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.GELU())]
    frozen = nn.Linear(16, 16).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), *layers, frozen, nn.Linear(16, 2))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "torchvision vit": _torchvision_vit,
    "timm vit": _timm_vit,
    "sequential": _sequential,
    "two streams": TwoStreams,
}


class Images:
    """24 images with a label, 8 × 8; of `sizes`, by turns of a global batch or of a sample, if given."""

    def __init__(self, *, sizes: tuple[int, ...] = (8,), every: int = 8) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(24, 3, 8, 8, generator=generator)
        self.sizes, self.every = sizes, every

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        size = self.sizes[index // self.every % len(self.sizes)]
        return self.x[index, :, :size], int(self.x[index].mean() > 0)


def _inputs(micro: Any) -> Any:
    return {"images": micro.x, "scale": 1 + micro.y.float()}


def _pooled(micro: Any) -> Tensor:
    """Images of any height, as those of 8 rows."""
    return torch.nn.functional.interpolate(micro.x, size=(8, 8))


def _mean(output: Tensor, micro: Any) -> Tensor:
    return dt.cross_entropy(output, micro.y).mean()


def _wrong_shape(output: Tensor, micro: Any) -> Tensor:
    return dt.cross_entropy(output, micro.y)[:, None]


def train(
    *,
    model: str,
    sizes: tuple[int, ...] = (8,),
    every: int = 8,
    loss: str | None = None,
    steps: int = 3,
    **settings: Any,
) -> list[float]:
    """The losses of a few steps, and the last evaluation's."""
    inputs = {"two streams": _inputs}.get(model, _pooled)
    losses = {"mean": _mean, "wrong shape": _wrong_shape}
    plain = lambda output, micro: dt.cross_entropy(output, micro.y)  # noqa: E731
    objective = dt.Objective(inputs=inputs, loss=losses[loss] if loss else plain)
    data = Images(sizes=sizes, every=every)
    with dt.Run(global_batch=8, seed=3, device="cpu", **settings) as run:
        state = run.setup(MODELS[model], OptimizerSpec(lr=0.01))
        stream = run.stream(data, steps=steps, shuffle=False, loader_cost="memory")
        seen = [run.train_step(state, step, objective).loss for step in stream]
        evaluated = run.evaluate(state, Images(), objective, {}, batch=5, loader_cost="memory")
    return [*seen, evaluated["loss"]]


def failing(**options: Any) -> str:
    """Trains, which must be refused; returns why."""
    try:
        train(**options)
    except dt.InputError as error:
        return str(error)
    raise AssertionError("nothing was refused")
