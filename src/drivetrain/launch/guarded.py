"""The launcher's line to its guardian (`guardian.py`), which ends the ranks when the launcher is gone."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from drivetrain.launch import guardian


class Guarded:
    """Process ids that the guardian kills, with their sessions, should this process die. Thread-safe.

    Args:
        held_files: descriptors that the guardian keeps open until those processes are gone.
    """

    def __init__(self, held_files: tuple[int, ...] = ()) -> None:
        self._held_files = held_files
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def add(self, pid: int) -> None:
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(Path(guardian.__file__))],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    start_new_session=True,
                    pass_fds=self._held_files,
                )
            self._tell(f"+{pid}")

    def drop(self, pid: int) -> None:
        """The process has been reaped: its number may belong to somebody else from now on."""
        with self._lock:
            self._tell(f"-{pid}")

    def close(self) -> None:
        with self._lock:
            if self._process is None:
                return
            self._tell("q")
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    def _tell(self, line: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            # The guardian was killed: the job goes on, only less protected.
            return
