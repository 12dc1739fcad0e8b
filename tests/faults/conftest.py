"""Trainings that are hurt from outside, as `drivetrain train` in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fault_programs
from rank_pool import RankPool

LIMIT_S = 120.0

# A step takes half a second while the file `slow` is there, so that what a test does falls into the training.
TASK = """
import time
from pathlib import Path
import torch
from torch import nn
import drivetrain as dt

SLOW = Path(__file__).with_name("slow")

class Points:
    def __init__(self):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(60, 6, generator=generator)
        self.y = (self.x.mean(dim=1) > 0).long()
    def __len__(self):
        return len(self.y)
    def __getitem__(self, index):
        return self.x[index], int(self.y[index])

def loss(out, micro):
    if SLOW.exists():
        time.sleep(0.5)
    return dt.cross_entropy(out, micro.y)

def build():
    model = lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    return dt.Task(
        build_model=model, train_data=Points(), objective=dt.Objective(loss=loss), loader_cost="memory"
    )
"""
STEPS = 300


def options_of(task: Path, folder: Path) -> list[str]:
    """What a training is asked for, as words of the command line."""
    words = ["--task", f"{task}:build", "--global-batch", "8", "--epochs", "null", "--max-steps", str(STEPS)]
    words += ["--telemetry.tensorboard", "false", "--checkpoint.every-steps", "10"]
    return [*words, "--output", str(folder)]


class Training:
    """One `drivetrain train` process."""

    def __init__(self, folder: Path, task: Path, flags: tuple[str, ...]) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "drivetrain", "train", *options_of(task, folder), *flags]
        environ = {key: value for key, value in os.environ.items() if not key.startswith("PET_")}
        self.process = subprocess.Popen(
            command,
            env=environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def end(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out.decode()

    def wait_for(self, what: Callable[[], Any]) -> Any:
        """Waits until `what()` is true, and returns it."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := what()):
            assert self.process.poll() is None, f"it ended early:\n{self.end()[1]}"
            assert time.monotonic() < deadline, "it did not come"
            time.sleep(0.05)
        return found

    def events(self, rank: int = 0) -> list[dict[str, Any]]:
        return lines_of(self.folder / "events" / f"rank-{rank:05d}.jsonl")

    def headers(self, rank: int = 0) -> list[dict[str, Any]]:
        return [event for event in self.events(rank) if event["kind"] == "header"]

    def restarts(self) -> list[dict[str, Any]]:
        return lines_of(self.folder / "launch" / "restarts.jsonl")

    def certificate(self) -> list[dict[str, Any]]:
        return lines_of(self.folder / "certificate.jsonl")

    def wait_for_start(self, number: int, world_size: int) -> None:
        """Waits until some steps of the `number`th start (from 0) are done, by `world_size` ranks."""

        def is_under_way() -> bool:
            events = self.events()
            starts = [i for i, e in enumerate(events) if e["kind"] == "header" and e["restart"] == number]
            if not starts or events[starts[-1]]["world_size"] != world_size:
                return False
            return sum(event["kind"] == "step" for event in events[starts[-1] :]) >= 2

        self.wait_for(is_under_way)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that may be growing."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """`train(*flags)` starts a training into one folder; `slow` is on. What is left is killed in the end."""
    started: list[Training] = []
    task = tmp_path / "my_task.py"
    task.write_text(TASK)
    (tmp_path / "slow").touch()

    def start(*flags: str) -> Training:
        started.append(Training(tmp_path / "run", task, flags))
        return started[-1]

    yield start
    for training in started:
        if training.process.poll() is None:
            training.process.send_signal(signal.SIGKILL)
        if training.process.stdout is not None and not training.process.stdout.closed:
            training.process.communicate(timeout=LIMIT_S)


@pytest.fixture(scope="session")
def undisturbed(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The certificate of a training with two ranks that nothing happened to, nor any launcher started."""
    folder = tmp_path_factory.mktemp("undisturbed")
    task = folder / "my_task.py"
    task.write_text(TASK)
    ranks.run(2, fault_programs.train, words=options_of(task, folder / "run"), output=str(folder / "run"))
    return lines_of(folder / "run" / "certificate.jsonl")
