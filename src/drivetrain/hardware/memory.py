"""How much memory this process may really use: the machine's, or the tightest cgroup limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from drivetrain.hardware.cgroup import folders, read_number
from drivetrain.spec.unknown import Unknown


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """`limit_bytes` is Unknown where neither the machine's memory nor a limit could be read."""

    limit_bytes: int | Unknown
    reason: str


def usable_memory(root: Path = Path("/")) -> MemoryLimit:
    """Host memory that may be used in all, by this process and those that share its limit.

    Args:
        root: where /proc and /sys are found, for captured trees.
    """
    machine_bytes = _machine_bytes(root)
    limits = list(_limits(root))
    # cgroup v1 writes "no limit" as a number near 2^63; it loses against the machine's own memory.
    tightest = min(limits, default=None)
    if tightest is not None and (machine_bytes is None or tightest[0] < machine_bytes):
        return MemoryLimit(limit_bytes=tightest[0], reason=f"cgroup limit in {tightest[1]}")
    if machine_bytes is None:
        reason = "neither /proc/meminfo nor a cgroup limit could be read"
        return MemoryLimit(limit_bytes=Unknown(reason), reason=reason)
    return MemoryLimit(limit_bytes=machine_bytes, reason="the machine's memory, no tighter cgroup limit")


def _limits(root: Path) -> Iterator[tuple[int, str]]:
    for version, name in ((2, "memory.max"), (1, "memory.limit_in_bytes")):
        for folder in folders("memory", version, root):
            limit_bytes = read_number(folder / name)
            if limit_bytes is not None:
                yield limit_bytes, str(Path("/") / (folder / name).relative_to(root))


def _machine_bytes(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None
