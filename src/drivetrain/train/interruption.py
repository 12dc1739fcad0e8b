"""What asks this process to stop: signals, noted here and acted on by all ranks together.

Imports nothing heavy: the worker listens before it imports torch, which takes seconds in which a signal would
end the process.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
TIME_LIMIT = 255
"""The code of a stop because the time allotted to the job is nearly over; others are signal numbers."""


class Interruption:
    """The request to stop, of this process: `code` is 0, the number of the first signal, or TIME_LIMIT."""

    def __init__(self) -> None:
        self.code = 0

    def note(self, signum: int, _frame: FrameType | None) -> None:
        if signum == signal.SIGINT and self.code == signal.SIGINT:
            raise KeyboardInterrupt
        self.code = self.code or signum


_of_this_process = Interruption()


def listen() -> Interruption:
    """From now on stop signals are noted instead of ending the process; a second SIGINT does end it.

    A signal that somebody else handles or ignores is left to them. Only the main thread can listen; calling
    it again changes nothing.
    """
    if threading.current_thread() is threading.main_thread():
        for signum in STOP_SIGNALS:
            if signal.getsignal(signum) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(signum, _of_this_process.note)
    return _of_this_process


def stop_listening() -> None:
    """Gives the signals their usual effect back, and forgets what was noted."""
    _of_this_process.code = 0
    if threading.current_thread() is threading.main_thread():
        for signum in STOP_SIGNALS:
            if signal.getsignal(signum) == _of_this_process.note:
                usual = signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL
                signal.signal(signum, usual)


def describe(code: int) -> str:
    """What asked for the stop, as a person calls it."""
    if code == TIME_LIMIT:
        return "the job's time limit"
    try:
        return signal.Signals(code).name
    except ValueError:
        return f"signal {code}"
