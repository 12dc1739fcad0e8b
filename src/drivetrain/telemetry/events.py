"""The one event schema. Every rank writes these, one a line; every verb that explains a run reads them.

Fields may be added under the same schema number: readers ignore fields and kinds they do not know. A field
that changes its meaning needs a new number. `None` always means "not known", never zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from drivetrain.spec.parts import StepPart

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Event:
    """What every event carries. The writer stamps these three; an event that was never written has no stamps.

    Attributes:
        rank: the rank that wrote it (-1: not written yet).
        mono_s: seconds on that host's monotonic clock; only differences within one host mean anything.
        wall_s: seconds since the epoch.
    """

    kind: ClassVar[str] = ""
    rank: int = -1
    mono_s: float = math.nan
    wall_s: float = math.nan


@dataclass(frozen=True, kw_only=True)
class Header(Event):
    """The first line of a file, and again after every restart or resume that appends to it."""

    kind: ClassVar[str] = "header"
    world_size: int
    local_rank: int
    host: str
    pid: int
    started_wall_s: float
    restart: int = 0
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """What is trained, where and how; written by rank 0 before the first step.

    Attributes:
        devices: one name a rank, in rank order ("cpu", "cuda:0 NVIDIA H200").
        num_samples: samples in the training set, so that position / num_samples is the epoch.
        shares: samples a step of each rank, in rank order.
        batch: `BatchPlan.describe()`.
        loader: how samples are loaded and why ("2 workers: 4 CPUs in this cgroup, 2 ranks").
        notes: what `auto` chose and why, one sentence each.
        start_step: steps already done; not zero after a resume.
        sample_unit: what a sample is called in rates ("img" gives img/s).
        tokens_per_sample: tokens that each sample trains on; None where it has none.
        versions: of what computes: torch, cuda, nccl, cudnn, numpy, python, drivetrain, driver; "" for none.
    """

    kind: ClassVar[str] = "run_started"
    name: str
    strategy: str
    devices: tuple[str, ...]
    precision: str
    total_steps: int
    num_samples: int
    global_batch: int
    accumulation: int
    micro_batch: int
    world_size: int
    shares: tuple[int, ...] = ()
    batch: str = ""
    loader: str = ""
    notes: tuple[str, ...] = ()
    start_step: int = 0
    sample_unit: str = "img"
    tokens_per_sample: int | None = None
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StepEvent(Event):
    """One optimizer step of one rank.

    Attributes:
        step: steps done after this one; the first is 1, so a checkpoint written after it has the same number.
        position: samples consumed by all ranks after this step.
        loss: mean over the global batch.
        parts: seconds of each part that was measured; they sum to `step_s`.
        num_samples: samples of this rank in this step, bad ones included.
        num_skipped: bad samples of this rank in this step (they kept their slot with weight 0).
        host_data_wait_s: seconds this rank's host thread stood waiting for data, hidden or not.
    """

    kind: ClassVar[str] = "step"
    step: int
    position: int
    num_samples: int
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    parts: dict[StepPart, float] = field(default_factory=dict)
    step_s: float | None = None
    num_skipped: int = 0
    host_data_wait_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ClusterStep(Event):
    """One step seen over all ranks, from the control word; written by rank 0, a few steps late.

    The tuples are in rank order; an entry is None where a rank could not tell. Times are those of the latest
    step that the rank had timed in full: on a GPU of some steps
    before, and without the checkpoint's.
    """

    kind: ClassVar[str] = "cluster_step"
    step: int
    samples: tuple[int | None, ...]
    step_s: tuple[float | None, ...]
    data_wait_s: tuple[float | None, ...]
    loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class EvalEvent(Event):
    """One evaluation over the whole held-out set, each sample counted once; written by rank 0.

    Attributes:
        epoch: position / samples in the training set.
        metrics: by name; an accuracy is a share in 0…1.
    """

    kind: ClassVar[str] = "eval"
    step: int
    epoch: float
    num_samples: int
    metrics: dict[str, float]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CheckpointEvent(Event):
    """A checkpoint was completed; written by rank 0.

    Attributes:
        seconds: what training waited for it.
        written_s: what copying it to the disk took, mostly while training went on.
    """

    kind: ClassVar[str] = "checkpoint"
    step: int
    path: str
    seconds: float
    bytes: int
    written_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class SkippedSampleEvent(Event):
    """A bad sample was skipped; written by the rank that met it."""

    kind: ClassVar[str] = "skipped_sample"
    source: str
    reason: str
    step: int


@dataclass(frozen=True, kw_only=True)
class MessageEvent(Event):
    """Something a person should read. `level` is "info", "warning" or "error"."""

    kind: ClassVar[str] = "message"
    level: str
    text: str


@dataclass(frozen=True, kw_only=True)
class RunEnded(Event):
    """The last event of a rank that could still write.

    Attributes:
        status: "done", "stopped" (asked to, before the last step), "failed".
        reason: why, in a sentence; empty when done.
        step: steps done.
        seconds: since this process's run started.
    """

    kind: ClassVar[str] = "run_ended"
    status: str
    step: int
    seconds: float
    reason: str = ""


EVENT_TYPES: dict[str, type[Event]] = {
    event_type.kind: event_type
    for event_type in (
        Header,
        RunStarted,
        StepEvent,
        ClusterStep,
        EvalEvent,
        CheckpointEvent,
        SkippedSampleEvent,
        MessageEvent,
        RunEnded,
    )
}
