"""Writes run directories as ranks would, with made-up times, for the displays to read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from drivetrain.spec.batch import plan_batches
from drivetrain.spec.parts import StepPart
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import (
    CheckpointEvent,
    ClusterStep,
    EvalEvent,
    Event,
    Header,
    RunEnded,
    RunStarted,
    SkippedSampleEvent,
    StepEvent,
)
from drivetrain.telemetry.writer import EventWriter


def _metrics(step: int) -> dict[str, float]:
    """Best at the last evaluation before step 30."""
    return {"accuracy": 0.9 + 0.001 * (step if step < 30 else 0), "loss": 0.3}


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Two ranks on one host by default; every step takes `step_s` seconds, as written, not as waited."""

    run_dir: RunDir
    world_size: int = 2
    global_batch: int = 7
    total_steps: int = 40
    start_step: int = 0
    num_samples: int = 70
    step_s: float = 0.01
    data_wait_share: float = 0.1
    pause_s: float = 0.0
    eval_every: int = 10
    with_cluster: bool = True
    restart: int = 0
    device: str = "cpu"
    bad: dict[int, str] = field(default_factory=dict)
    losses: Callable[[int], float] = lambda step: 1.0 / step
    metrics: Callable[[int], dict[str, float]] = _metrics

    def header(self, rank: int) -> Header:
        return Header(
            rank=rank,
            world_size=self.world_size,
            local_rank=rank,
            host="node7",
            pid=100 + rank,
            started_wall_s=time.time(),
            restart=self.restart,
        )

    def started(self) -> RunStarted:
        plan = plan_batches(global_batch=self.global_batch, num_data_ranks=self.world_size)
        return RunStarted(
            name="digits",
            strategy="ddp",
            devices=(self.device,) * self.world_size,
            precision="fp32",
            total_steps=self.total_steps,
            num_samples=self.num_samples,
            global_batch=plan.global_batch,
            accumulation=plan.accumulation,
            micro_batch=plan.micro_batch,
            world_size=self.world_size,
            shares=tuple(len(plan.share(rank)) for rank in range(self.world_size)),
            batch=plan.describe(),
            loader="1 worker a rank: 2 CPUs, 2 ranks",
            notes=("precision auto → fp32: no GPU",),
            start_step=self.start_step,
        )

    def rank_events(self, rank: int, until: int | None = None) -> Iterator[Event]:
        """What `rank` writes for the steps after `start_step`, the run's start included, its end not."""
        plan = plan_batches(global_batch=self.global_batch, num_data_ranks=self.world_size)
        if rank == 0:
            yield self.started()
        for step in range(self.start_step + 1, (until or self.total_steps) + 1):
            # The first steps compile.
            step_s = self.step_s * (100 if step <= self.start_step + 3 else 1)
            wait_s = self.data_wait_share * step_s
            num_samples = len(plan.share(rank))
            parts = {
                StepPart.DATA_WAIT: wait_s,
                StepPart.FORWARD: 0.4 * (step_s - wait_s),
                StepPart.BACKWARD: 0.6 * (step_s - wait_s),
            }
            yield StepEvent(
                step=step,
                position=step * self.global_batch,
                num_samples=num_samples,
                loss=self.losses(step),
                lr=0.1,
                grad_norm=1.0,
                parts=parts,
                step_s=step_s,
            )
            if rank == 1 and step in self.bad:
                yield SkippedSampleEvent(source=self.bad[step], reason="truncated", step=step)
            if rank == 0 and self.with_cluster:
                yield ClusterStep(
                    step=step,
                    samples=tuple(len(plan.share(r)) for r in range(self.world_size)),
                    step_s=(step_s,) * self.world_size,
                    data_wait_s=(wait_s,) * self.world_size,
                    loss=self.losses(step),
                )
            if rank == 0 and step % self.eval_every == 0:
                yield EvalEvent(
                    step=step,
                    epoch=step * self.global_batch / self.num_samples,
                    num_samples=360,
                    metrics=self.metrics(step),
                    seconds=0.2,
                )
                path = self.run_dir.checkpoint(step)
                yield CheckpointEvent(step=step, path=str(path), seconds=0.1, bytes=123456)

    def write(self, *, until: int | None = None, status: str | None = "done", reason: str = "") -> None:
        """All ranks, each from a thread as if from its process; `status` None ends as if killed."""
        threads = [
            threading.Thread(target=self._write_rank, args=(rank, until, status, reason))
            for rank in range(self.world_size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive()

    def _write_rank(self, rank: int, until: int | None, status: str | None, reason: str) -> None:
        with open_writer(self, rank) as writer:
            step = self.start_step
            for event in self.rank_events(rank, until):
                writer.write(event)
                if isinstance(event, StepEvent):
                    step = event.step
                    time.sleep(self.pause_s)
                if isinstance(event, CheckpointEvent):
                    complete_checkpoint(self.run_dir, event.step)
            if status is not None:
                writer.write(RunEnded(status=status, reason=reason, step=step, seconds=12.0))


@contextmanager
def open_writer(simulation: Simulation, rank: int) -> Iterator[EventWriter]:
    writer = EventWriter(simulation.run_dir.rank_events(rank), simulation.header(rank))
    try:
        yield writer
    finally:
        writer.close()


def complete_checkpoint(run_dir: RunDir, step: int) -> Path:
    folder = run_dir.checkpoint(step)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "COMPLETE").write_text("")
    run_dir.latest.unlink(missing_ok=True)
    run_dir.latest.symlink_to(folder.name)
    return folder
