"""A rank is killed: how long until the next optimizer step, with drivetrain and with torchrun.

    python benchmarks/launch/restart.py [--pairs 10]

Two jobs of two CPU ranks train the same model on the same samples with DDP and AdamW, and save every 50
steps. The one that is not measured rests between two steps. In turn, in each job, rank 1 is ended by SIGKILL;
both launchers then start both ranks anew, and those resume from the last checkpoint. torchrun's script is
plain PyTorch: torch.save and torch.load. Prints a Markdown table of medians, and of the parts.

torchrun gets TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. Without it its restarted ranks may read the addresses of
ranks that are gone: some restarts then fail once more ("connectFullMesh … Connection refused"), or hang.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from drivetrain.report.restarts import PARTS, timed_restarts
from drivetrain.spec.run_dir import RunDir

_LIMIT_S = 120.0
_STEPS_BETWEEN = 20

SHARED = """
import time
from pathlib import Path
import torch
from torch import nn
from torch.nn import functional as F

def rest(name):
    while Path(__file__).with_name(f"rest-{name}").exists():
        time.sleep(0.02)
    time.sleep(0.005)

def build_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 64, 10),
    )

class Points:
    def __init__(self):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(1800, 1, 8, 8, generator=generator)
        self.y = torch.randint(10, (1800,), generator=generator)
    def __len__(self):
        return len(self.y)
    def __getitem__(self, index):
        return self.x[index], int(self.y[index])
"""

DRIVETRAIN = """
import drivetrain as dt
from shared import Points, build_model, rest

def loss(out, micro):
    rest("drivetrain")
    return dt.cross_entropy(out, micro.y)

def build():
    objective = dt.Objective(loss=loss)
    return dt.Task(
        build_model=build_model, train_data=Points(), objective=objective, loader_cost="memory"
    )
"""

TORCHRUN = """
import json, os, time
stamps = {"script": time.time()}
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from pathlib import Path
from shared import Points, build_model, rest

folder = Path(__file__).parent
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
model = DistributedDataParallel(build_model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
stamps["built"] = time.time()
saved, step = folder / "torchrun.pt", 0
if saved.exists():
    state = torch.load(saved, weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
data = Points()
sampler = DistributedSampler(data, seed=0)
stamps["loaded"] = time.time()
is_first = True
while True:
    sampler.set_epoch(step)
    for x, y in DataLoader(data, batch_size=48, sampler=sampler):
        rest("torchrun")
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        if is_first:
            is_first = False
            stamps |= {"step": time.time(), "pid": os.getpid(), "rank": rank}
            with (folder / f"torchrun-{rank}.jsonl").open("a") as file:
                file.write(json.dumps(stamps) + "\\n")
        if step % 50 == 0 and rank == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, saved.with_suffix(".new"))
            saved.with_suffix(".new").replace(saved)
        (folder / "torchrun-at").write_text(str(step)) if rank == 0 else None
"""


class Job:
    """One of the two jobs."""

    name: str
    environment: ClassVar[dict[str, str]] = {}

    def step(self) -> int:
        """How many steps are done."""
        raise NotImplementedError

    def __init__(self, folder: Path, command: list[str]) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1", **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=(folder / f"{self.name}.log").open("w"),
            stderr=subprocess.STDOUT,
            cwd=folder,
        )

    def wait_for(self, what: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + _LIMIT_S
        while not (found := what()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                log = (self.folder / f"{self.name}.log").read_text()
                sys.exit(f"{self.name} stands still at step {self.step()}:\n{log[-4000:]}")
            time.sleep(0.02)
        return found

    def rest(self, *, is_resting: bool) -> None:
        mark = self.folder / f"rest-{self.name}"
        mark.touch() if is_resting else mark.unlink(missing_ok=True)


class Torchrun(Job):
    name = "torchrun"
    environment: ClassVar[dict[str, str]] = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def __init__(self, folder: Path) -> None:
        script = folder / "torchrun.py"
        script.write_text(TORCHRUN)
        words = ["--standalone", "--nproc-per-node=2", "--max-restarts=100", str(script)]
        super().__init__(folder, [sys.executable, "-m", "torch.distributed.run", *words])

    def starts(self, rank: int) -> list[dict[str, Any]]:
        return _lines(self.folder / f"torchrun-{rank}.jsonl")

    def is_under_way(self, number: int) -> bool:
        return len(self.starts(0)) > number and len(self.starts(1)) > number

    def step(self) -> int:
        text = (self.folder / "torchrun-at").read_text() if (self.folder / "torchrun-at").exists() else ""
        return int(text or 0)

    def pid(self) -> int:
        return int(self.starts(1)[-1]["pid"])

    def times(self, number: int, killed_wall_s: float) -> dict[str, float]:
        start = self.starts(0)[number]
        names = ("script", "built", "loaded", "step")
        stamps = [killed_wall_s, *(start[name] for name in names)]
        parts = dict(zip(TORCHRUN_PARTS, (b - a for a, b in itertools.pairwise(stamps)), strict=True))
        return {"total": start["step"] - killed_wall_s, **parts}


TORCHRUN_PARTS = ("until the script runs", "imports and process group", "reload", "first step")


class Drivetrain(Job):
    name = "drivetrain"

    def __init__(self, folder: Path) -> None:
        task = folder / "task.py"
        task.write_text(DRIVETRAIN)
        self.run = RunDir(folder / "run")
        words = [
            "--task",
            f"{task}:build",
            "--global-batch",
            "96",
            "--epochs",
            "null",
            "--max-steps",
            "1000000",
        ]
        words += [
            "--checkpoint.every-steps",
            "50",
            "--checkpoint.keep",
            "2",
            "--telemetry.tensorboard",
            "false",
        ]
        words += ["--nproc-per-node", "2", "--max-restarts", "100", "--output", str(self.run.path)]
        super().__init__(folder, [sys.executable, "-m", "drivetrain", "train", *words])

    def events(self, rank: int) -> list[dict[str, Any]]:
        return _lines(self.run.rank_events(rank))

    def is_under_way(self, number: int) -> bool:
        return all(self._has_stepped(rank, number) for rank in (0, 1))

    def _has_stepped(self, rank: int, number: int) -> bool:
        events = self.events(rank)
        headers = [index for index, event in enumerate(events) if event["kind"] == "header"]
        return len(headers) > number and any(e["kind"] == "step" for e in events[headers[number] :])

    def step(self) -> int:
        steps = [event["step"] for event in self.events(0) if event["kind"] == "step"]
        return int(steps[-1]) if steps else 0

    def pid(self) -> int:
        return int([event for event in self.events(1) if event["kind"] == "header"][-1]["pid"])

    def times(self, number: int, killed_wall_s: float) -> dict[str, float]:
        timed = timed_restarts(self.run)[number - 1]
        assert timed.seconds is not None
        detection = timed.restart.noticed_wall_s - killed_wall_s
        return {"total": detection + timed.seconds, "detection": detection, **timed.parts}

    def forked(self) -> int:
        return sum(item.restart.is_forked for item in timed_restarts(self.run))


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def measure(job: Torchrun | Drivetrain, number: int) -> dict[str, float]:
    """Kills rank 1 for the `number`th time (from 1) while the job is at work."""
    job.rest(is_resting=False)
    start = job.step()
    job.wait_for(lambda: job.step() >= start + _STEPS_BETWEEN)
    os.kill(job.pid(), signal.SIGKILL)
    killed_wall_s = time.time()
    job.wait_for(lambda: job.is_under_way(number))
    job.rest(is_resting=True)
    return job.times(number, killed_wall_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=10)
    num_pairs = parser.parse_args().pairs
    model = next(
        (
            line.partition(":")[2]
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    print(f"{len(os.sched_getaffinity(0))} CPUs ({model.strip()}), load {os.getloadavg()[0]:.1f} before;")
    print(f"Python {platform.python_version()}, torch {version('torch')}, Linux {platform.release()}.\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "shared.py").write_text(SHARED)
        jobs: list[Torchrun | Drivetrain] = []
        try:
            for kind in (Torchrun, Drivetrain):
                jobs.append(kind(folder))
                jobs[-1].wait_for(lambda: jobs[-1].is_under_way(0))
                time.sleep(30.0)  # the forkserver imports meanwhile
                jobs[-1].rest(is_resting=True)
            times: dict[str, list[dict[str, float]]] = {job.name: [] for job in jobs}
            for pair in range(num_pairs):
                for job in jobs if pair % 2 == 0 else reversed(jobs):
                    times[job.name].append(measure(job, pair + 1))
                    print(f"{job.name} {pair + 1}: {times[job.name][-1]['total']:.2f} s", file=sys.stderr)
            drivetrain = jobs[1]
            assert isinstance(drivetrain, Drivetrain)
            report(times, drivetrain.forked())
        finally:
            for job in jobs:
                job.rest(is_resting=False)
                job.process.terminate()
            for job in jobs:
                job.process.wait(60)


def report(times: dict[str, list[dict[str, float]]], num_forked: int) -> None:
    print("| launcher | killed → next step, median s | min | max |")
    print("|---|---|---|---|")
    totals = {name: [item["total"] for item in items] for name, items in times.items()}
    for name, values in totals.items():
        print(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} | {max(values):.2f} |")
    ratios = [own / other for own, other in zip(totals["drivetrain"], totals["torchrun"], strict=True)]
    print(f"\ndrivetrain / torchrun, median of the pairs: {statistics.median(ratios):.3f}")
    print(
        f"(from {min(ratios):.3f} to {max(ratios):.3f}); {num_forked} of {len(ratios)} starts were forked.\n"
    )
    print("| launcher | part | median s |")
    print("|---|---|---|")
    for name, parts in (("drivetrain", ("detection", *PARTS)), ("torchrun", TORCHRUN_PARTS)):
        for part in parts:
            print(f"| {name} | {part} | {statistics.median([item[part] for item in times[name]]):.3f} |")
    print(f"\nload {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
