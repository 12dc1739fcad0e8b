"""The GPUs of this machine and who uses them: a table for people, and the same as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drivetrain.hardware.leases.holder import Holder
from drivetrain.hardware.leases.look import LeaseState
from drivetrain.hardware.nvml import GpuFacts, GpuProcess
from drivetrain.hardware.processes import ProcessFacts
from drivetrain.spec.unknown import Unknown

_NA = "N/A"
_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class GpuRow:
    """One GPU, its lease, and what /proc says of its processes (in the order of `facts.processes`)."""

    facts: GpuFacts
    lease: LeaseState
    processes: tuple[ProcessFacts, ...] = ()


def table(rows: Sequence[GpuRow], now_s: float | None = None) -> str:
    """A line for each GPU, under it a line for its lease and one for each process; N/A stays N/A."""
    now_s = time.time() if now_s is None else now_s
    if not rows:
        return "no GPU"
    head = ("GPU", "name", "memory used", "util", "temp", "lease")
    cells = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    lines = [_line(head, widths)]
    for row, line in zip(rows, cells[1:], strict=True):
        lines.append(_line(line, widths))
        lines += [f"     {text}" for text in _details(row, now_s)]
    return "\n".join(lines)


def to_json(rows: Sequence[GpuRow]) -> dict[str, Any]:
    """Keys are part of the public interface. What is unknown is `{"unknown": reason}`, no lease is null."""
    return {"gpus": [_gpu_json(row) for row in rows]}


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cells(row: GpuRow) -> tuple[str, ...]:
    facts = row.facts
    return (
        str(facts.index),
        _show(facts.name),
        f"{_gib(facts.memory_used_bytes)} / {_gib(facts.memory_total_bytes)} GiB",
        _show(facts.utilisation_percent, " %"),
        _show(facts.temperature_c, " °C"),
        _standing(row),
    )


def _standing(row: GpuRow) -> str:
    """Who may have it, in a word or two; what NVML and the lock did not say is unknown, not free."""
    if isinstance(row.lease.is_held, Unknown):
        return "unknown"
    if row.lease.is_held:
        return "leased"
    if row.facts.is_split is True:
        return "MIG"
    if isinstance(row.facts.processes, Unknown):
        return "unknown"
    is_used = any(item.kind != "graphics" for item in row.facts.processes)
    return "none, but in use" if is_used else "free"


def _details(row: GpuRow, now_s: float) -> list[str]:
    facts = row.facts
    lines = [] if isinstance(facts.uuid, str) else [f"UUID {facts.uuid}"]
    lines += _lease_lines(row, now_s)
    if isinstance(facts.mig, tuple):
        lines += [f"MIG instance {uuid}" for uuid in facts.mig]
    if isinstance(facts.processes, Unknown):
        return [*lines, f"processes: {facts.processes}"]
    return [*lines, *map(_process, facts.processes, row.processes)]


def _lease_lines(row: GpuRow, now_s: float) -> list[str]:
    lease = row.lease
    lines = []
    if isinstance(lease.holder, Holder):
        job = "" if lease.holder.job is None else f" [{lease.holder.job}]"
        lines.append(f"lease: {lease.holder.describe(now_s)}{job}")
    elif lease.holder is not None and isinstance(row.facts.uuid, str):  # else the UUID's line says it
        lines.append(f"lease: {lease.holder}")
    if isinstance(lease.num_waiting, int) and lease.num_waiting:
        lines.append(f"{lease.num_waiting} waiting for it")
    return lines


def _process(item: GpuProcess, seen: ProcessFacts) -> str:
    job = f" [{seen.job}]" if isinstance(seen.job, str) else ""
    return (
        f"pid {item.pid}  {_show(seen.user)}  {item.kind}  {_gib(item.memory_bytes)} GiB"
        f"  {_show(seen.command)}{job}"
    )


def _show(value: object, unit: str = "") -> str:
    return _NA if isinstance(value, Unknown) else f"{value}{unit}"


def _gib(num_bytes: int | Unknown) -> str:
    return _NA if isinstance(num_bytes, Unknown) else f"{num_bytes / _GIB:.1f}"


def _gpu_json(row: GpuRow) -> dict[str, Any]:
    facts = row.facts
    return {
        "index": facts.index,
        "uuid": _plain(facts.uuid),
        "name": _plain(facts.name),
        "pci_bus_id": _plain(facts.pci_bus_id),
        "memory_total_bytes": _plain(facts.memory_total_bytes),
        "memory_used_bytes": _plain(facts.memory_used_bytes),
        "utilisation_percent": _plain(facts.utilisation_percent),
        "temperature_c": _plain(facts.temperature_c),
        "mig": _plain(facts.mig),
        "processes": _plain(facts.processes)
        if isinstance(facts.processes, Unknown)
        else [_process_json(item, seen) for item, seen in zip(facts.processes, row.processes, strict=True)],
        "lease": _lease_json(row.lease),
        "num_waiting": _plain(row.lease.num_waiting),
    }


def _process_json(item: GpuProcess, seen: ProcessFacts) -> dict[str, Any]:
    return {
        "pid": item.pid,
        "kind": item.kind,
        "memory_bytes": _plain(item.memory_bytes),
        "user": _plain(seen.user),
        "command": _plain(seen.command),
        "job": _plain(seen.job),
    }


def _lease_json(lease: LeaseState) -> Any:
    if lease.holder is None:
        return None
    if isinstance(lease.holder, Unknown):
        return lease.holder.to_json()
    return {**lease.holder.to_json(), "pids": list(lease.pids)}


def _plain(value: Any) -> Any:
    return value.to_json() if isinstance(value, Unknown) else value
