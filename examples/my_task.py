"""A task of one's own: drivetrain train --task examples/my_task.py:build --global-batch 64 --lr 0.01"""

import torch
from torch import nn

import drivetrain as dt


class Waves:
    """Any map-style data set: a length, and samples by index."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.linspace(-3, 3, 4000)[index].reshape(1)
        return x, torch.sin(2 * x)


def build() -> dt.Task:
    return dt.Task(
        build_model=lambda: nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1)),
        train_data=Waves(),
        objective=dt.Objective(loss=lambda out, micro: (out - micro.y).square().mean(dim=1)),
        loader_cost="memory",
    )
