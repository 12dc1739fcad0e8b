"""How many CPUs this process may really use: affinity and cgroup quotas, not the machine's count."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from drivetrain.hardware.cgroup import folders, read_number


@dataclass(frozen=True, kw_only=True)
class CpuCount:
    """`count` is at least 1; `reason` says what set it, in one clause."""

    count: int
    reason: str


def usable_cpus(root: Path = Path("/"), *, num_affinity: int | None = None) -> CpuCount:
    """CPUs that may run at once: the fewest that the affinity mask or any cgroup above allows.

    A quota of part of a CPU is rounded down (but to at least 1): one process more would be throttled.

    Args:
        root: where /proc and /sys are found, for captured trees.
        num_affinity: CPUs in the affinity mask; None asks the kernel.
    """
    if num_affinity is None:
        num_affinity = len(os.sched_getaffinity(0))
    best = CpuCount(
        count=num_affinity, reason=f"{num_affinity} in the affinity mask, no tighter cgroup quota"
    )
    for cpus, source in _quotas(root):
        count = max(1, int(cpus))
        if count < best.count:
            reason = f"cgroup quota of {cpus:g} CPUs in {source}, {num_affinity} in the affinity mask"
            best = CpuCount(count=count, reason=reason)
    return best


def _quotas(root: Path) -> Iterator[tuple[float, Path]]:
    """Each quota in CPUs, with the file that sets it (as this process sees it, without `root`)."""
    for folder in folders("cpu", 2, root):
        cpus = _cpu_max(folder / "cpu.max")
        if cpus is not None:
            yield cpus, Path("/") / (folder / "cpu.max").relative_to(root)
    for folder in folders("cpu", 1, root):
        quota_us = read_number(folder / "cpu.cfs_quota_us")
        period_us = read_number(folder / "cpu.cfs_period_us")
        # -1 is "no quota" in v1.
        if quota_us is not None and period_us is not None and quota_us > 0 and period_us > 0:
            yield quota_us / period_us, Path("/") / (folder / "cpu.cfs_quota_us").relative_to(root)


def _cpu_max(path: Path) -> float | None:
    """`200000 100000` (µs of CPU time in each period) is 2 CPUs; `max 100000` is no quota."""
    try:
        quota_us, period_us = path.read_text().split()
        return int(quota_us) / int(period_us)
    except (OSError, ValueError, ZeroDivisionError):
        return None
