"""The same run as own_loop.py with the inner loop written out: micro-batches, backward, clipping, update.

drivetrain launch --nproc-per-node 2 -- examples/own_inner_loop.py
"""

from __future__ import annotations

import torch.nn.functional as F
from own_loop import Spirals, build_model, build_optimizer

import drivetrain as dt


def main() -> None:
    # At most 8 samples at once: the rest of the rank's share is accumulated, without needless reductions.
    with dt.Run(global_batch=64, micro_batch=8, seed=0) as run:
        state = run.setup(build_model, build_optimizer)
        for step in run.stream(Spirals(), steps=400, loader_cost="memory"):
            with run.step(state, step) as s:
                for micro in s.micro_batches():
                    losses = F.cross_entropy(state.model(micro.x), micro.y, reduction="none")
                    s.backward((losses * micro.weight).sum())
                s.clip(1.0)
                out = s.apply()
            if (step.index + 1) % 100 == 0:
                loss = out.loss
                if run.world.rank == 0:
                    print(f"step {step.index + 1}: loss {loss:.4f} on {run.world.size} rank(s)", flush=True)


if __name__ == "__main__":
    main()
