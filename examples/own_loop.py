"""One's own training loop with drivetrain as a library.

It runs unchanged on one process or many, started by whatever is at hand:

    python examples/own_loop.py
    torchrun --nproc-per-node 2 examples/own_loop.py
    mpirun -np 2 python examples/own_loop.py
    drivetrain launch --nproc-per-node 2 -- examples/own_loop.py

The global batch is 64 in all of them, and so are the samples in it and the loss.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import drivetrain as dt


class Spirals:
    """Two intertwined spirals; a map-style data set of 2,000 points with their class."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = index % 2
        turn = 0.5 + 3.0 * (index // 2) / 1000
        angle = math.pi * (turn + label)
        return torch.tensor([turn * math.cos(angle), turn * math.sin(angle)]) / 3.5, label


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def main() -> None:
    objective = dt.Objective(loss=lambda out, micro: dt.cross_entropy(out, micro.y))
    with dt.Run(global_batch=64, seed=0, clip_norm=1.0) as run:
        state = run.setup(build_model, build_optimizer)
        for step in run.stream(Spirals(), steps=400, loader_cost="memory"):
            out = run.train_step(state, step, objective)
            run.checkpoint_if_due(state, step)
            if (step.index + 1) % 100 == 0:
                loss = out.loss  # waits for the other ranks' part, so read it only now and then
                if run.world.rank == 0:
                    print(f"step {step.index + 1}: loss {loss:.4f} on {run.world.size} rank(s)", flush=True)


if __name__ == "__main__":
    main()
