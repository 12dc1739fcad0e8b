"""What /proc tells of a rank's process."""

from __future__ import annotations

from pathlib import Path

_PF_EXITING = 0x4  # include/linux/sched.h


def is_exiting(pid: int) -> bool:
    """Whether the process has begun to die, or is dead: its end is decided, if perhaps not yet reported."""
    try:
        # The command's name, in parentheses, may itself hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return True
    return fields[0] in ("Z", "X") or bool(int(fields[6]) & _PF_EXITING)


def parent(pid: int) -> int | None:
    """The process' parent; None where there is no such process any more."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return None


def catches(pid: int, signum: int) -> bool:
    """Whether the process has a handler of its own for the signal."""
    return _has_bit(pid, "SigCgt", signum)


def ignores(pid: int, signum: int) -> bool:
    return _has_bit(pid, "SigIgn", signum)


def _has_bit(pid: int, mask: str, signum: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    for line in status.split("\n"):
        name, _, value = line.partition(":")
        if name == mask:
            return bool(int(value, 16) >> (signum - 1) & 1)
    return False
