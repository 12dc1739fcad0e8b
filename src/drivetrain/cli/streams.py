"""The process's own input and output, when they are closed, full or nobody reads them.

What cannot be printed must not change how a finished run ends, nor hide why it failed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO


def open_missing() -> None:
    """Opens /dev/null where stdin, stdout or stderr is closed (`<&- >&- 2>&-`).

    Else the next files that are opened get these numbers, and what is printed would be written into them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, which is this one; children find it open as well.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python has made these None at its start, which whoever writes to them does not expect.
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def say(text: str) -> None:
    """Prints a line on stderr; one that cannot be written is dropped, as there is nowhere to say so."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def show(text: str, *, what: str) -> None:
    """Prints a result on stdout, or says on stderr why `what` could not be printed."""
    try:
        print(text, flush=True)
    except (OSError, ValueError) as error:
        say(f"{what} could not be printed: {error}")


def flush_or_discard() -> None:
    """Flushes both streams, and lets go of what cannot be written.

    Else the interpreter tries once more while it shuts down, and ends with code 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            _discard(stream)


def _discard(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        number = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
