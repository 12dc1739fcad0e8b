"""What a rank's end means: its outcome, which failure came first, and the launcher's exit code."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.launch.lost_peer import sign_of_lost_peer
from drivetrain.launch.ranks import RankEnd
from drivetrain.launch.traceback_text import fatal_python_error, last_lines, last_traceback, read_tail
from drivetrain.spec.exit_codes import ExitCode, exit_code_for_signal
from drivetrain.spec.outcome import RankOutcome

_LAST_LINES = 10
_MESSAGE_CHARS = 300
# How much later than its consequences a cause may be known to have ended: the kernel frees a dead process's
# memory and GPUs before it reports the end.
_CAUSE_DELAY_S = 30.0
_HINTS = {
    "SIGKILL": "often the kernel's out-of-memory killer; see dmesg, and the cgroup's memory.events",
    "SIGSEGV": "a crash in native code; run with PYTHONFAULTHANDLER=1 to see where",
    "SIGBUS": "often a full /dev/shm (data loader workers) or a file cut short while mapped",
    "SIGABRT": "native code gave up, often NCCL's watchdog or an uncaught C++ exception; see the log's end",
    "SIGFPE": "an integer division by zero in native code",
    "SIGILL": "an instruction that this CPU does not have: a package built for another one",
    "SIGPIPE": "broken pipe: it wrote to a process that had gone",
    "SIGTERM": "ended from outside, by a scheduler or by hand",
    "SIGINT": "interrupted from outside",
}


@dataclass(frozen=True, kw_only=True)
class _ErrorFile:
    message: str
    traceback: str | None
    raised_wall_s: float | None


def rank_outcome(end: RankEnd, *, node_rank: int, host: str) -> RankOutcome:
    """Reads the rank's error file and the end of its log where it failed."""
    code = end.returncode
    outcome = RankOutcome(
        rank=end.rank,
        local_rank=end.local_rank,
        node_rank=node_rank,
        host=host,
        pid=end.pid,
        exit_code=code if code is not None and code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        ended_wall_s=end.ended_wall_s,
        log=str(end.log),
    )
    if code in (ExitCode.DONE, ExitCode.PREEMPTED):
        return outcome
    recorded = read_error_file(end.error_file)
    message, traceback = (recorded.message, recorded.traceback) if recorded else _from_log(end)
    raised = recorded.raised_wall_s if recorded else None
    return dataclasses.replace(
        outcome,
        ended_wall_s=raised if raised is not None else end.ended_wall_s,
        message=message,
        traceback=traceback,
    )


def causes(ends: Sequence[RankEnd], outcomes: Sequence[RankOutcome]) -> tuple[RankOutcome, ...]:
    """The failures of `outcomes` (those of `ends`) that the launcher did not bring about by stopping ranks.

    A rank that raised first but was still closing down when it was stopped counts, by its error file's time;
    so does one that a SIGKILL ended which the launcher had not sent.
    """
    return tuple(
        outcome
        for end, outcome in zip(ends, outcomes, strict=True)
        if outcome.failed and not _is_stopped(end, outcome)
    )


def earliest(failures: Sequence[RankOutcome]) -> RankOutcome | None:
    """The failure to put on top: the one that was raised, or else ended, first. Hosts' clocks are trusted.

    A rank that failed only because a peer had gone comes after any other that failed at about that time.
    """
    failed = sorted(
        (item for item in failures if item.failed),
        key=lambda item: (item.ended_wall_s or float("inf"), item.rank),
    )
    if not failed:
        return None
    until_s = (failed[0].ended_wall_s or float("inf")) + _CAUSE_DELAY_S
    return next(
        (item for item in failed if (item.ended_wall_s or float("inf")) <= until_s and not lost_a_peer(item)),
        failed[0],
    )


def lost_a_peer(failure: RankOutcome) -> bool:
    """Whether what the rank said of its end tells that another rank had gone before."""
    return sign_of_lost_peer(f"{failure.message or ''}\n{failure.traceback or ''}") is not None


def _is_stopped(end: RankEnd, outcome: RankOutcome) -> bool:
    if end.stopped_wall_s is None:
        return False
    if outcome.signal == signal.SIGKILL and not end.is_killed:
        return False
    return outcome.ended_wall_s is None or outcome.ended_wall_s >= end.stopped_wall_s


def job_exit_code(first: RankOutcome | None, ranks: Sequence[RankOutcome] = ()) -> int:
    """What the launcher exits with when `first` failed first: 2, 128+n for signal n, or 1; where none failed
    0, or 75 if `ranks` were stopped with their state saved."""
    if first is None:
        was_stopped = any(rank.exit_code == ExitCode.PREEMPTED for rank in ranks)
        return ExitCode.PREEMPTED if was_stopped else ExitCode.DONE
    if first.signal is not None:
        return exit_code_for_signal(first.signal)
    return ExitCode.USAGE if first.exit_code == ExitCode.USAGE else ExitCode.FAILED


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def read_error_file(path: Path) -> _ErrorFile | None:
    """What torch's `record`, or a drivetrain rank, wrote of its exception; None where nothing usable is."""
    try:
        raw = json.loads(path.read_text(errors="replace"))
        modified_s = path.stat().st_mtime
    except (OSError, ValueError):
        return None
    message = raw.get("message") if isinstance(raw, dict) else None
    if isinstance(message, str):
        return _ErrorFile(
            message=message, traceback=None, raised_wall_s=_raised_s(raw.get("timestamp"), modified_s)
        )
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    stack = extra.get("py_callstack")
    return _ErrorFile(
        message=str(message.get("message", "")),
        traceback=stack.rstrip() if isinstance(stack, str) else None,
        raised_wall_s=_raised_s(extra.get("timestamp"), modified_s),
    )


def _raised_s(stamp: Any, modified_s: float) -> float | None:
    """torch writes whole seconds, cut off, which would order a later failure before an earlier one; the
    file's own time of writing falls into the same second and is finer."""
    try:
        seconds = float(stamp)
    except (TypeError, ValueError):
        return None
    if seconds.is_integer() and seconds <= modified_s < seconds + 2.0:
        return modified_s
    return seconds


def _from_log(end: RankEnd) -> tuple[str, str | None]:
    code = end.returncode
    if code is None:
        return (
            "could not be ended: it survived SIGKILL, stuck in the kernel (a wedged GPU or file server)",
            None,
        )
    tail = read_tail(end.log, start=end.log_start)
    if code < 0:
        name = signal_name(-code)
        if end.stopped_wall_s is not None and (-code != signal.SIGKILL or end.is_killed):
            return f"ended by the launcher with {name}", None
        hint = _HINTS.get(name)
        if -code == signal.SIGABRT and (said := sign_of_lost_peer(tail)):
            hint = said[:_MESSAGE_CHARS]
        return f"killed by {name}" + (f": {hint}" if hint else ""), fatal_python_error(tail)
    found = last_traceback(tail)
    if found is not None:
        return found.message, found.text
    said = last_lines(tail, _LAST_LINES)
    if code == ExitCode.USAGE and said:
        return said, None
    return f"exited with code {code} without a traceback" + (
        f"; its last lines:\n{said}" if said else ""
    ), None
