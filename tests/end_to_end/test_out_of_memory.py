"""micro_batch: auto: a rank that runs out of memory makes the run start anew with less at once."""

from drivetrain.config.fitted_batch import fitted_micro_batch, note_smaller
from drivetrain.spec.run_dir import RunDir

TASK = """
import os
import torch
from torch import nn
import drivetrain as dt

class Data:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((4,), float(index)), index % 2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
    def forward(self, x):
        if len(x) > 5 and os.environ["RANK"] == "1":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.linear(x)

def task():
    objective = dt.Objective(loss=lambda out, micro: dt.cross_entropy(out, micro.y))
    return dt.Task(build_model=Net, train_data=Data(), objective=objective, loader_cost="memory")
"""


def test_the_run_starts_anew_with_smaller_micro_batches(shell, tmp_path):
    (tmp_path / "task.py").write_text(TASK)
    asked = ("train", "--task", "task.py:task", "--output", "run", "--max-steps", 2)
    ended = shell("drivetrain", *asked, "--nproc-per-node", 2, "--global-batch", 16)
    assert ended.code == 0, ended.err
    assert "rank 1 ran out of memory: starting anew with micro-batches of at most 4" in ended.err
    assert "micro-batch 4 × 2 accumulated → 8 per rank × 2 ranks = global batch 16" in ended.err
    assert fitted_micro_batch(RunDir(tmp_path / "run")) == 4


def test_one_sample_at_a_time_is_the_end_of_it(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.launch.mkdir()
    assert note_smaller(run_dir, 3) == 1
    assert note_smaller(run_dir, 1) is None
    assert fitted_micro_batch(run_dir) == 1
