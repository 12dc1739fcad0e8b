"""What ranks train in tests: a small net on points, and a small GPT on counted-up text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import drivetrain as dt
from drivetrain.engine.stages import Cut
from drivetrain.train.language import language_objective, sequence_losses
from drivetrain.train.models.gpt import Gpt
from drivetrain.train.models.gpt_config import GptConfig
from split_models import Planned, timm_vit, torchvision_vit

NUM_SAMPLES = 52
LENGTH = 16
VOCABULARY = 61


@dataclass(frozen=True, kw_only=True)
class SmallTask:
    """`build_model` and `build_data` take a test's options by name; metrics are torchmetrics'."""

    build_model: Callable[..., nn.Module]
    build_data: Callable[..., Any]
    objective: dt.Objective
    build_metrics: Callable[[], dict[str, Any]]
    update: Callable[[Any, Any, Any], None]
    draw: Callable[..., Any] | None = None
    render: Callable[..., Any] | None = None
    defaults: dict[str, Any] = field(default_factory=dict)


class Points:
    """52 fixed points with a label; `bad` ones cannot be read, labels and values can be spoilt."""

    def __init__(
        self, *, bad: tuple[int, ...] = (), nan_at: int | None = None, num_samples: int = NUM_SAMPLES
    ) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(NUM_SAMPLES, 1, 6, 6, generator=generator)
        self.y = (self.x.mean(dim=(1, 2, 3)) > 0).long()
        self.bad = bad
        self.num_samples = num_samples
        if nan_at is not None:
            self.x[nan_at] = float("nan")

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index in self.bad:
            raise OSError(f"sample {index} cannot be read")
        return self.x[index], int(self.y[index])


def draw(generator: np.random.Generator) -> np.ndarray:
    return generator.normal(size=2).astype(np.float32)


def render(sample: tuple[Tensor, int], params: Any) -> tuple[Tensor, int]:
    scale, shift = (0.0, 0.0) if params is None else (float(params[0]), float(params[1]))
    return sample[0] * (1 + 0.1 * scale) + 0.1 * shift, sample[1]


class Residual(nn.Module):
    """A block that repeats, so that fsdp has something to shard by."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.linear = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(self.norm(x)))


class Net(nn.Module):
    """Several layers, so that DDP has an order of gradients to settle; with dropout and a norm if asked."""

    def __init__(
        self, *, norm: str = "group", dropout: float = 0.0, unused: bool = False, repeats: int = 0
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8) if norm == "batch" else nn.GroupNorm(2, 8)
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(8 * 36, 32)
        self.residuals = nn.ModuleList(Residual() for _ in range(repeats))
        self.head = nn.Linear(32, 2)
        self.unused = nn.Linear(3, 3) if unused else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.begin(x)
        for residual in self.residuals:
            x = residual(x)
        return self.head(x)

    def begin(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        return torch.relu(self.dropout(self.hidden(x)))

    def pipeline_cut(self) -> Cut:
        return Cut(
            layers=tuple(f"residuals.{name}" for name, _ in self.residuals.named_children()),
            first=("conv", "norm", "hidden"),
            last=("head", *(["unused"] if self.unused is not None else [])),
            before=self.begin,
            after=self.head,
        )


class Counting:
    """52 sequences that count up from a random place, modulo 60."""

    def __init__(self, *, bad: tuple[int, ...] = (), num_samples: int = NUM_SAMPLES) -> None:
        starts = torch.randint(60, (NUM_SAMPLES, 1), generator=torch.Generator().manual_seed(7))
        self.tokens = (starts + torch.arange(LENGTH + 1)) % 60
        self.bad = bad
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index in self.bad:
            raise OSError(f"sample {index} cannot be read")
        return self.tokens[index, :-1], self.tokens[index, 1:]


def build_gpt(**shape: Any) -> Gpt:
    return Gpt(GptConfig(vocab_size=VOCABULARY, max_sequence_length=LENGTH, loss_chunk_tokens=50, **shape))


def _accuracy() -> dict[str, Any]:
    from torchmetrics.aggregation import SumMetric
    from torchmetrics.classification import MulticlassAccuracy

    return {"accuracy": MulticlassAccuracy(num_classes=2, average="micro"), "count": SumMetric()}


def _mean_loss() -> dict[str, Any]:
    from torchmetrics.aggregation import MeanMetric, SumMetric

    return {"sequence_loss": MeanMetric(), "count": SumMetric()}


def _update_points(metric: Any, output: Tensor, micro: Any) -> None:
    valid = micro.weight > 0
    if type(metric).__name__ == "SumMetric":
        metric.update(micro.weight.sum())
    else:
        metric.update(output[valid], micro.y[valid])


def _update_text(metric: Any, output: Tensor, micro: Any) -> None:
    if type(metric).__name__ == "SumMetric":
        metric.update(micro.weight.sum())
    else:
        metric.update(sequence_losses(output, micro)[micro.weight > 0])


TASKS = {
    "points": SmallTask(
        build_model=Net,
        build_data=Points,
        objective=dt.Objective(loss=lambda out, micro: dt.cross_entropy(out, micro.y)),
        build_metrics=_accuracy,
        update=_update_points,
        draw=draw,
        render=render,
    ),
    "text": SmallTask(
        build_model=build_gpt,
        build_data=Counting,
        objective=language_objective(LENGTH),
        build_metrics=_mean_loss,
        update=_update_text,
        defaults={"num_layers": 4, "width": 32, "num_heads": 4, "num_kv_heads": 2, "ffn_width": 64},
    ),
}
TASKS |= {
    name: dataclasses.replace(TASKS["points"], build_model=build)
    for name, build in (("torchvision_vit", torchvision_vit), ("timm_vit", timm_vit), ("planned", Planned))
}
