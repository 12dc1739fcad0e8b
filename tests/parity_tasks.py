"""Tasks with one mistake each, of the kind that makes a distributed run differ from a single one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import drivetrain as dt


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


class Points:
    """Fixed points with a label."""

    def __init__(self, num: int = 64) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(num, 6, generator=generator)
        self.y = (self.x.sum(dim=1) > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], int(self.y[index])


class NoisyPoints(Points):
    """Augmented by a generator that each rank seeds by its number."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(rank())

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, y = super().__getitem__(index)
        return x + float(self.generator.normal()), y


class Net(nn.Module):
    def __init__(self, *between: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.between = nn.Sequential(*between)
        self.last = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(torch.tanh(self.first(x))))


class Centred(nn.Module):
    """Subtracts a running mean, kept in a buffer, of what it has seen in earlier steps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - self.mean.clone()
        with torch.no_grad():
            self.mean.lerp_(x.mean(dim=0), 0.5)
        return centred


class Chaos(nn.Module):
    """Descending its loss with SGD at rate 1 iterates the logistic map at r = 3.85 in each weight, which
    doubles an error about every other step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.2, 0.8, 50))

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        slope = (1 + 0.001 * x[:, :1]).mean(dim=1, keepdim=True)  # a little different for each sample
        return (slope * (-2.85 * w**2 / 2 + 3.85 * w**3 / 3)).sum(dim=1)


def task(build_model: Callable[[], nn.Module] = Net, *, data: Any = None, **fields: Any) -> dt.Task:
    fields.setdefault("objective", dt.Objective(loss=lambda out, micro: dt.cross_entropy(out, micro.y)))
    return dt.Task(build_model=build_model, train_data=data or Points(), loader_cost="memory", **fields)


def right() -> dt.Task:
    return task()


def sharded_data() -> dt.Task:
    return task(data=Points(64 // world_size()))


def noise_by_rank() -> dt.Task:
    return task(data=NoisyPoints())


def scaled_start() -> dt.Task:
    def build() -> nn.Module:
        net = Net()
        with torch.no_grad():
            net.last.weight.mul_(world_size())
        return net

    return task(build)


def mean_of_means() -> dt.Task:
    def mean(out: Tensor, micro: dt.MicroBatch) -> Tensor:
        return dt.cross_entropy(out, micro.y).mean()

    return task(objective=dt.Objective(loss=mean, weight=lambda micro: 1.0))


def summed_gradients() -> dt.Task:
    def build() -> nn.Module:
        net = Net()
        for parameter in net.parameters():
            parameter.register_hook(lambda gradient: gradient * world_size())
        return net

    return task(build)


def not_reduced() -> dt.Task:
    def build() -> nn.Module:
        net = Net()
        net._ddp_params_and_buffers_to_ignore = ["last.bias"]
        return net

    return task(build)


def batch_norm() -> dt.Task:
    return task(lambda: Net(nn.BatchNorm1d(16)))


def dropout() -> dt.Task:
    return task(lambda: Net(nn.Dropout(0.3)))


def running_mean() -> dt.Task:
    return task(lambda: Net(Centred()))


def scaled_rate() -> dt.Task:
    return task(build_optimizer=lambda net: torch.optim.SGD(net.parameters(), lr=0.1 * world_size()))


def chaos() -> dt.Task:
    return task(
        Chaos,
        objective=dt.Objective(loss=lambda out, micro: out),
        build_optimizer=lambda net: torch.optim.SGD(net.parameters(), lr=1.0),
    )


def refused_on_one_rank() -> dt.Task:
    def build() -> nn.Module:
        if rank() == 1:
            raise dt.InputError("this model", "rank 1 cannot have it", "leave it")
        return Net()

    return task(build)


def killed() -> dt.Task:
    def build() -> nn.Module:
        if rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        return Net()

    return task(build)
