"""Runs what may crash or hang in a process of its own: how it ended is an answer, not an accident."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_MARK: Final = "drivetrain-doctor-answer:"
_AFTER_KILL_S: Final = 5.0
_KEPT_CHARACTERS: Final = 20_000


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child ended.

    Attributes:
        outcome: ok, error (an exit code other than 0), crashed (by a signal), hung (killed after its time).
        detail: the signal's name, or the last line of stderr.
        answer: what it handed back by `answer`, or None.
    """

    outcome: str
    detail: str
    answer: Mapping[str, Any] | None
    seconds: float
    stderr: str = ""


def answer(values: Mapping[str, Any]) -> None:
    """Called by a child: hands `values` to its parent, past whatever libraries print."""
    sys.stdout.write(f"\n{_MARK}{json.dumps(values)}\n")
    sys.stdout.flush()


def run_child(command: Sequence[str], *, timeout_s: float, environ: Mapping[str, str] | None = None) -> Ended:
    """Runs `command` (after this interpreter) and waits, `timeout_s` at most. Nothing of it is left."""
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if environ is None else dict(environ),
        start_new_session=True,
        text=True,
        errors="replace",
    )
    has_hung = False
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        has_hung = True
        out, err = _kill(process)
    except BaseException:
        _kill(process)
        raise
    # Also what it started and left behind.
    _signal_group(process.pid)
    return _ended(process.returncode, out, err, has_hung=has_hung, seconds=time.monotonic() - start)


def _kill(process: subprocess.Popen[str]) -> tuple[str, str]:
    _signal_group(process.pid)
    try:
        return process.communicate(timeout=_AFTER_KILL_S)
    except subprocess.TimeoutExpired:
        # In an uninterruptible system call (a dead GPU, a dead file server): it goes when the call returns.
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        return "", "it does not even end when killed: stuck in the kernel"


def _signal_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _ended(code: int | None, out: str, err: str, *, has_hung: bool, seconds: float) -> Ended:
    line = next((line for line in reversed(out.splitlines()) if line.startswith(_MARK)), None)
    given = None
    if line is not None:
        with contextlib.suppress(ValueError):
            given = json.loads(line.removeprefix(_MARK))
    last = next((text.strip() for text in reversed(err.splitlines()) if text.strip()), "")[:400]
    if has_hung:
        return Ended(
            outcome="hung", detail=last, answer=given, seconds=seconds, stderr=err[-_KEPT_CHARACTERS:]
        )
    if code is not None and code < 0:
        detail = f"signal {-code} ({_signal_name(-code)})"
        return Ended(
            outcome="crashed", detail=detail, answer=given, seconds=seconds, stderr=err[-_KEPT_CHARACTERS:]
        )
    outcome = "ok" if code == 0 else "error"
    detail = "" if code == 0 else last or f"exit code {code}"
    return Ended(
        outcome=outcome, detail=detail, answer=given, seconds=seconds, stderr=err[-_KEPT_CHARACTERS:]
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
