"""What a parser hands back: one block, typed, with where it began and which host it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from drivetrain.doctor.facts import (
    ABSENT,
    Driver,
    Gpu,
    GpuProcess,
    Libraries,
    Nccl,
    Python,
    RdmaPort,
    System,
    Torch,
    XidEvent,
)
from drivetrain.spec.unknown import Unknown


@dataclass(frozen=True, kw_only=True)
class Block:
    """Facts out of one stretch of text.

    Attributes:
        kind: what was recognised ("nvidia-smi", "ibstat", …).
        line: the first line's number, from 0.
        host: the host that the block itself names (NCCL's lines do), else None.
    """

    kind: str
    line: int
    host: str | None = None
    system: System = field(default_factory=System)
    driver: Driver = field(default_factory=Driver)
    gpus: tuple[Gpu, ...] | Unknown = ABSENT
    gpu_processes: tuple[GpuProcess, ...] | Unknown = ABSENT
    xids: tuple[XidEvent, ...] | Unknown = ABSENT
    torch: Torch = field(default_factory=Torch)
    libraries: Libraries = field(default_factory=Libraries)
    python: Python = field(default_factory=Python)
    rdma: tuple[RdmaPort, ...] | Unknown = ABSENT
    nccl: Nccl | Unknown = ABSENT


def stretches(starts: Sequence[int], end: int) -> list[tuple[int, int]]:
    """(first line, line after the last) of each block, by where blocks start."""
    return [(start, until) for start, until in zip(starts, [*starts[1:], end], strict=False)]
