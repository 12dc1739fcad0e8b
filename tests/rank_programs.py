"""What ranks run in tests: small trainings whose every sample, loss and weight is handed back."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import drivetrain as dt
from drivetrain.engine.optimizers import OptimizerSpec, Schedule
from drivetrain.engine.settings import CheckpointPolicy

NUM_SAMPLES = 52
GLOBAL_BATCH = 8  # which 3 does not divide


class Points:
    """52 fixed points with a label; `bad` ones cannot be read, labels and values can be spoilt."""

    def __init__(self, *, bad: tuple[int, ...] = (), nan_at: int | None = None) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(NUM_SAMPLES, 1, 6, 6, generator=generator)
        self.y = (self.x.mean(dim=(1, 2, 3)) > 0).long()
        self.bad = bad
        if nan_at is not None:
            self.x[nan_at] = float("nan")

    def __len__(self) -> int:
        return NUM_SAMPLES

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


def torchvision_vit() -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    shape = {"image_size": 6, "patch_size": 3, "num_layers": 2, "num_heads": 4, "hidden_dim": 32}
    model = VisionTransformer(**shape, mlp_dim=64, num_classes=2)
    model.conv_proj = nn.Conv2d(1, 32, 3, 3)
    nn.init.normal_(model.heads.head.weight)  # zeros would have no gradient pass in the first step
    return model


def timm_vit(**options: Any) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    shape = {"img_size": 6, "patch_size": 3, "in_chans": 1, "depth": 2, "num_heads": 4, "embed_dim": 32}
    return VisionTransformer(**shape, num_classes=2, **options)


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
        return self.head(torch.tanh(self.down(self.inside(parts).flatten(1))))


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
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        x = torch.relu(self.dropout(self.hidden(x)))
        for residual in self.residuals:
            x = residual(x)
        return self.head(x)


def train(
    *,
    steps: int,
    output: str | None = None,
    save_every: int | None = None,
    every_minutes: float | None = None,
    keep: int = 10,
    pause_s: float = 0.0,
    weight_decay: float = 0.01,
    seed: int = 3,
    only_first_reads_loss: bool = False,
    evaluate_every: int | None = None,
    shuffle: bool = True,
    net: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    optimizer: str = "adamw",
    model: str = "Net",
    own_loop: bool = False,
    lr: float = 0.01,
    device: str = "cpu",
    **settings: Any,
) -> dict[str, Any]:
    """Trains `steps` steps; the ids, parameters and losses of each, and the final weights and buffers."""
    run = dt.Run(
        global_batch=GLOBAL_BATCH,
        seed=seed,
        device=device,
        output=Path(output) if output else None,
        checkpoint=CheckpointPolicy(every_steps=save_every, every_minutes=every_minutes, keep=keep),
        **settings,
    )
    objective = dt.Objective(loss=lambda out, micro: dt.cross_entropy(out, micro.y))
    seen: list[Any] = []
    losses: list[float] = []
    saved: list[int] = []
    with run:
        state = run.setup(
            lambda: globals()[model](**(net or {})),
            OptimizerSpec(name=optimizer, lr=lr, weight_decay=weight_decay, momentum=0.9),
            Schedule(name="cosine", total_steps=40, warmup_steps=4),
        )
        first_step = state.step
        for step in run.stream(
            Points(**(data or {})),
            steps=steps,
            draw=draw,
            render=render,
            shuffle=shuffle,
            loader_cost="memory",
        ):
            for micro in step.micro_batches:
                valid = micro.positions >= 0
                seen.append(
                    (
                        step.index,
                        micro.positions[valid].tolist(),
                        micro.ids[valid].tolist(),
                        micro.params[valid],
                    )
                )
            out = _own_step(run, state, step) if own_loop else run.train_step(state, step, objective)
            if run.world.rank == 0 or not only_first_reads_loss:
                losses.append(out.loss)
            if run.checkpoint_if_due(state, step) is not None:
                saved.append(state.step)
            if evaluate_every and state.step % evaluate_every == 0:
                run.evaluate(state, Points(), objective, {}, render=render, loader_cost="memory")
            time.sleep(pause_s)
        weights = {name: whole(t) for name, t in state.module.state_dict().items()}
        ema = {name: whole(t) for name, t in state.ema.weights.items()} if state.ema else {}
        scale = state.scaler.get_scale() if state.scaler else None
    return {
        "first_step": first_step,
        "seen": seen,
        "losses": losses,
        "saved": saved,
        "weights": weights,
        "ema": ema,
        "scale": scale,
        "notes": run.notes,
        "accumulation": run.plan.accumulation,
    }


def whole(tensor: Tensor) -> Tensor:
    """A copy of all of a tensor that may be sharded. Called by all ranks."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu().clone()


def _own_step(run: dt.Run, state: Any, step: Any) -> Any:
    with run.step(state, step) as scope:
        for micro in scope.micro_batches():
            losses = dt.cross_entropy(state.model(micro.x), micro.y)
            scope.backward((losses * micro.weight).sum())
        scope.clip(0.5)
        return scope.apply()


def samples_by_step(results: list[dict[str, Any]]) -> dict[int, list[tuple[int, int, list[float]]]]:
    """Each global batch over all ranks: (position, id, parameters), in order of position."""
    steps: dict[int, list[tuple[int, int, list[float]]]] = {}
    for result in results:
        for index, positions, ids, params in result["seen"]:
            rows = zip(positions, ids, params.tolist(), strict=True)
            steps.setdefault(index, []).extend(rows)
    return {index: sorted(rows) for index, rows in steps.items()}


def failing(expected: str, **arguments: Any) -> str:
    """Runs `train`, which must raise the exception called `expected`; returns its text."""
    try:
        train(**arguments)
    except Exception as error:
        if type(error).__name__ != expected:
            raise
        return str(error)
    raise AssertionError(f"{expected} was not raised")


def train_with_full_disk(*, output: str, fill: str) -> tuple[str, str]:
    """Saves at step 2, then finds the disk full at step 4; returns the error and the last good checkpoint."""
    filler = Path(fill)
    run = dt.Run(global_batch=GLOBAL_BATCH, seed=3, device="cpu", output=Path(output))
    objective = dt.Objective(loss=lambda out, micro: dt.cross_entropy(out, micro.y))
    state = run.setup(Net, OptimizerSpec(lr=0.01))
    message = ""
    for step in run.stream(Points(), steps=6, loader_cost="memory"):
        run.train_step(state, step, objective)
        if state.step == 2:
            run.save(state)
        if state.step == 4:
            if run.world.rank == 0:
                _fill(filler)
            run.world.gather(None)
            try:
                run.save(state)
            except dt.CheckpointError as error:
                message = str(error)
            run.world.gather(None)
            if run.world.rank == 0:
                filler.unlink()
    run.end()
    return message, os.path.realpath(Path(output) / "checkpoints" / "latest")


def _fill(path: Path) -> None:
    """Writes until the file system has no room left."""
    with path.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2


def evaluate(*, num_samples: int) -> dict[str, float]:
    """Evaluates an untrained net on the first samples, with a metric that counts what it is given."""
    from torchmetrics.aggregation import SumMetric
    from torchmetrics.classification import MulticlassAccuracy

    class First(Points):
        def __len__(self) -> int:
            return num_samples

    def update(metric: Any, output: Tensor, micro: Any) -> None:
        valid = micro.weight > 0
        if isinstance(metric, SumMetric):
            metric.update(micro.weight.sum())
        else:
            metric.update(output[valid], micro.y[valid])

    run = dt.Run(global_batch=GLOBAL_BATCH, seed=3, device="cpu")
    objective = dt.Objective(loss=lambda out, micro: dt.cross_entropy(out, micro.y))
    with run:
        state = run.setup(Net, OptimizerSpec(lr=0.01))
        return run.evaluate(
            state,
            First(),
            objective,
            {"accuracy": MulticlassAccuracy(num_classes=2, average="micro"), "count": SumMetric()},
            batch=4,
            update=update,
            loader_cost="memory",
        )
