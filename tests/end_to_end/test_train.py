"""`drivetrain train` as a user runs it."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from drivetrain.spec.outcome import Outcome
from drivetrain.spec.parts import StepPart
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import ClusterStep, EvalEvent, RunStarted, StepEvent
from drivetrain.telemetry.reader import read_events
from drivetrain.train.models.digits_cnn import DigitsCnn

SHORT = ("--max-steps", "8", "--global-batch", "8", "--evaluate.every-epochs", "null")
# A small net for small pictures: what is tried here is the way to it.
TINY = ("--model.name", "resnet18", "--data.image-size", "32", *SHORT)


def events_of(run: Path, rank: int, kind):
    return [event for event in read_events(RunDir(run).rank_events(rank)) if isinstance(event, kind)]


def test_digits_on_two_processes_then_resumed_then_exported(shell, tmp_path):
    run = tmp_path / "run"
    first = shell("drivetrain", "train", "digits", "--max-steps", 30, "--output", run)
    assert first.code == 0, first.err
    assert "micro-batch 48 × 1 accumulated → 48 per rank × 2 ranks = global batch 96" in first.err
    assert "img/s (by rank" in first.err
    assert "accuracy" in first.out
    assert "drivetrain export" in first.out

    outcome = Outcome.from_json(RunDir(run).outcome.read_text())
    assert outcome.exit_code == 0
    assert [rank.exit_code for rank in outcome.ranks] == [0, 0]
    for rank in (0, 1):
        steps = events_of(run, rank, StepEvent)
        assert [event.step for event in steps] == list(range(1, 31))
        for event in steps:
            assert sum(event.parts.values()) == pytest.approx(event.step_s, rel=1e-6)
            assert {StepPart.FORWARD, StepPart.BACKWARD, StepPart.OPTIMIZER} <= event.parts.keys()
        assert RunDir(run).log(rank).exists()
    assert events_of(run, 0, RunStarted)[0].shares == (48, 48)
    assert events_of(run, 0, ClusterStep)[-1].samples == (48, 48)
    header, *rows = RunDir(run).metrics.read_text().splitlines()
    assert {"step", "train/loss", "eval/accuracy"} <= set(header.split(","))
    assert rows
    assert list(RunDir(run).tensorboard.glob("events.out.tfevents.*"))

    second = shell("drivetrain", "train", run / "config.yaml", "--output", run, "--max-steps", 60)
    assert second.code == 0, second.err
    assert f"resumed from {run}/checkpoints/step-00000030 at step 30" in second.err
    assert events_of(run, 0, EvalEvent)[-1].step == 60
    assert events_of(run, 0, EvalEvent)[-1].metrics["accuracy"] > 0.9
    assert RunDir(run).latest.resolve().name == "step-00000060"

    exported = shell("drivetrain", "export", run, "--json")
    assert exported.code == 0, exported.err
    facts = json.loads(exported.out)
    assert facts["step"] == 60
    weights = load_file(facts["path"])
    DigitsCnn().load_state_dict(weights)  # the bare model's own names, nothing missing, nothing more


def test_a_folder_of_images_with_an_odd_file_among_them(shell, images, tmp_path):
    broken = images / "train" / "light" / "03.jpg"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    failed = shell(
        "drivetrain", "train", "resnet50", "--data.path", images, *TINY, "--output", tmp_path / "fails"
    )
    assert failed.code == 1
    last_words = failed.err[failed.err.index("failed first") :]
    assert str(broken) in last_words
    assert "--data.on-bad-sample skip" in last_words
    assert "Traceback" not in failed.err

    run = tmp_path / "skips"
    skipped = shell(
        "drivetrain", "train", "resnet50", "--data.path", images, *TINY, "--output", run,
        "--data.on-bad-sample", "skip", "--workers", 1,
    )  # fmt: skip
    assert skipped.code == 0, skipped.err
    assert str(broken) in skipped.out
    assert sum(event.num_skipped for rank in (0, 1) for event in events_of(run, rank, StepEvent)) >= 1


@pytest.mark.parametrize(
    ("spoil", "args", "said"),
    [
        (lambda root: None, ("--data.path", "nowhere"), "nowhere"),
        (lambda root: (root / "val" / "new").mkdir(), (), "new"),
        (lambda root: None, ("--global-batch", "2", "--nproc-per-node", "3"), "1 ranks would get no sample"),
        (lambda root: None, ("--device", "cuda"), "no GPU is visible"),
        (lambda root: None, ("--optim.lrr", "1"), "optim.lr"),
        (lambda root: None, ("--resume", "missing/step-00000004"), "missing/step-00000004"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_created(shell, images, tmp_path, spoil, args, said):
    spoil(images)
    path = () if "--data.path" in args else ("--data.path", images)
    done = shell("drivetrain", "train", "resnet50", *path, *TINY, *args, "--output", tmp_path / "run")
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "run").exists()


def test_a_taken_port_is_refused_by_number(shell, tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = shell("drivetrain", "train", "digits", "--master-port", port, "--output", tmp_path / "run")
    assert done.code == 2
    assert str(port) in done.err
    assert not (tmp_path / "run").exists()


TASK = """
import torch
from torch import nn
import drivetrain as dt

class Squares:
    def __len__(self):
        return 200
    def __getitem__(self, index):
        x = torch.tensor([index / 100 - 1])
        return {"x": x, "y": SCALE * x * x}

SCALE = %s

def build():
    return dt.Task(
        build_model=lambda: nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)),
        train_data=Squares(),
        objective=dt.Objective(loss=lambda out, m: ((out - m.y) ** 2).mean(dim=1)),
        loader_cost="memory",
    )
"""


def test_a_task_of_ones_own_trains_from_the_command_line_alone(shell, tmp_path):
    (tmp_path / "my_task.py").write_text(TASK % "1.0")
    run = tmp_path / "run"
    done = shell(
        "drivetrain", "train", "--task", "my_task.py:build", "--global-batch", 20, "--epochs", 8,
        "--lr", "0.05", "--output", run, "--nproc-per-node", 1,
    )  # fmt: skip
    assert done.code == 0, done.err
    losses = [event.loss for event in events_of(run, 0, StepEvent)]
    assert losses[-1] < losses[0] / 3


def test_a_nan_loss_ends_with_code_1_naming_the_first_step(shell, tmp_path):
    (tmp_path / "my_task.py").write_text(TASK % "float('nan')")
    done = shell(
        "drivetrain", "train", "--task", "my_task.py:build", "--global-batch", 20, "--output",
        tmp_path / "run", "--nproc-per-node", 1,
    )  # fmt: skip
    assert done.code == 1
    assert "the loss became nan first at step 1, on rank 0" in done.err
    assert not (tmp_path / "run" / "checkpoints" / "latest").exists()


def test_a_mistake_found_late_keeps_what_was_trained(shell, tmp_path):
    """An evaluation that cannot work ends the run after it had saved: code 1, and all is still there."""
    late = (
        TASK % "1.0"
        + """
def build_with_bad_evaluation():
    import dataclasses
    bad = dt.Objective(loss=lambda out, m: (out - m.y) ** 2)
    return dataclasses.replace(build(), eval_data=Squares(), eval_objective=bad)
"""
    )
    (tmp_path / "my_task.py").write_text(late)
    run = tmp_path / "run"
    done = shell(
        "drivetrain", "train", "--task", "my_task.py:build_with_bad_evaluation", "--global-batch", 20,
        "--max-steps", 6, "--checkpoint.every-steps", 2, "--output", run, "--nproc-per-node", 1,
    )  # fmt: skip
    assert done.code == 1
    assert "shape (20, 1)" in done.err
    assert (RunDir(run).latest / "COMPLETE").exists()


LEAVER = """
import os, sys
import drivetrain as dt

def build():
    %s
"""


@pytest.mark.parametrize(
    ("leaves", "said"),
    [("sys.exit(0)", "the task called sys.exit(0)"), ("os._exit(0)", "before training had ended")],
)
def test_a_task_that_leaves_early_is_no_success(shell, tmp_path, leaves, said):
    (tmp_path / "my_task.py").write_text(LEAVER % leaves)
    done = shell(
        "drivetrain",
        "train",
        "--task",
        "my_task.py:build",
        "--output",
        tmp_path / "run",
        "--nproc-per-node",
        1,
    )
    assert done.code == 1
    assert said in done.err


def test_a_killed_rank_ends_the_run_which_a_second_start_finishes(shell, tmp_path):
    """SIGKILL to rank 1 in mid-run: 137, said by name; the same command then goes on from the checkpoint."""
    run = tmp_path / "run"
    command = (
        "train", "digits", "--max-steps", 400, "--output", run, "--checkpoint.every-steps", 20,
        "--evaluate.every-epochs", "null",
    )  # fmt: skip
    process = subprocess.Popen(
        [str(Path(sys.executable).parent / "drivetrain"), *map(str, command)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not RunDir(run).latest.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    header = next(iter(read_events(RunDir(run).rank_events(1))))
    import os

    os.kill(header.pid, signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 137
    assert "rank 1 of 2 failed first: signal 9 (SIGKILL)" in err
    again = shell("drivetrain", *command, "--max-steps", 60)
    assert again.code == 0, again.err
    assert "resumed from" in again.err
