"""What the process says to the shell when it ends."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every verb. Never 0 after any rank failed."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    DOCTOR = 3
    PARITY = 4
    PREEMPTED = 75
    HANG = 76
    BAD_NODE = 77


def exit_code_for_signal(signum: int) -> int:
    """The shell's convention for a process ended by signal `signum`."""
    return 128 + signum
