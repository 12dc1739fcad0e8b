"""What a lease says of who took it: written into the GPU's file, where anybody may write. For the eye only;
whether a lease holds is the lock's to say.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from typing import Any

from drivetrain.hardware.processes import plain
from drivetrain.spec.unknown import Unknown

_MAX_BYTES = 4096
_MAX_COMMAND = 500
_LATEST_S = 1e11  # the year 5138


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who took a lease, as they say. Times are seconds since 1970; `until_s` is None without `--for`."""

    user: str
    pid: int
    command: str
    since_s: float
    until_s: float | None = None
    job: str | None = None

    def describe(self, now_s: float | None = None) -> str:
        """`anna (pid 4242): python train.py, since 14:02, 3 h 10 min left`"""
        now_s = time.time() if now_s is None else now_s
        parts = [
            f"{self.user} (pid {self.pid}): {self.command or '?'}",
            f"since {_clock(self.since_s, now_s)}",
        ]
        if self.until_s is not None:
            left_s = self.until_s - now_s
            parts.append(f"{span(left_s)} left" if left_s >= 0 else f"over for {span(-left_s)}")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        return {
            "user": self.user,
            "pid": self.pid,
            "command": self.command,
            "since_s": self.since_s,
            "until_s": self.until_s,
            "job": self.job,
        }


def write_holder(file: int, holder: Holder) -> None:
    """The caller holds the lease. A full disk leaves it without a name."""
    record = {**holder.to_json(), "command": holder.command[:_MAX_COMMAND]}
    with contextlib.suppress(OSError):
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(record).encode(), 0)


def read_holder(file: int) -> Holder | Unknown:
    """What the file says, held against nonsense and control characters that others may have written."""
    try:
        record = json.loads(os.pread(file, _MAX_BYTES, 0))
        until_s, job = record["until_s"], record["job"]
        return Holder(
            user=plain(str(record["user"])[:64]),
            pid=int(_within(record["pid"], 1 << 31)),
            command=plain(str(record["command"])[:_MAX_COMMAND]),
            since_s=_within(record["since_s"], _LATEST_S),
            until_s=None if until_s is None else _within(until_s, _LATEST_S),
            job=None if job is None else plain(str(job)[:200]),
        )
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Unknown("the lock's file does not say who holds it")


def _within(value: object, limit: float) -> float:
    if not isinstance(value, int | float) or not 0 <= value < limit:  # NaN is not
        raise ValueError(value)
    return float(value)


def span(seconds: float) -> str:
    """`3 h 10 min`, `5 min`, `40 s`; days from two on."""
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{int(seconds)} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"


def _clock(at_s: float, now_s: float) -> str:
    form = "%H:%M" if abs(now_s - at_s) < 64800 else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(at_s))
