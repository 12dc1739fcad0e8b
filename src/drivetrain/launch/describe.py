"""What stands last on the screen when a job has failed."""

from __future__ import annotations

import datetime

from drivetrain.launch.failures import signal_name
from drivetrain.spec.exit_codes import ExitCode
from drivetrain.spec.outcome import Outcome, RankOutcome
from drivetrain.spec.restart import Restart

_INPUT_ERROR = ("drivetrain.spec.errors.InputError: ", "InputError: ")


def describe_failure(outcome: Outcome) -> str:
    """The earliest failure: its traceback, then rank, host, exit code or signal, time and log; or "".

    A user's mistake (exit code 2 with a message of its own) is told by its message alone.
    """
    first = outcome.earliest_failure
    if first is None:
        is_good = outcome.exit_code in (ExitCode.DONE, ExitCode.PREEMPTED)
        return outcome.error or ("" if is_good else f"failed with exit code {outcome.exit_code}")
    if first.exit_code == ExitCode.USAGE and (mistake := _input_error(first)):
        return mistake
    parts = []
    if first.traceback:
        parts.append(first.traceback.rstrip() + "\n")
    parts.append(_headline(outcome, first))
    parts.extend(f"  {name:<8} {value}" for name, value in _details(outcome, first))
    if outcome.error:
        parts.append(outcome.error)
    return "\n".join(parts)


def describe_restart(restart: Restart) -> str:
    """Said when ranks have been started anew."""
    ranks = f"{restart.world_size} ranks"
    if restart.world_size != restart.world_size_before:
        ranks = f"{restart.world_size_before} → {ranks}"
    seconds = max(0.0, restart.started_wall_s - restart.noticed_wall_s)
    return f"restarted {restart.cause}: {ranks}, started {seconds:.1f} s later"


def _input_error(first: RankOutcome) -> str | None:
    """The message without the exception's name, or None where a traceback of another exception is there."""
    message = first.message or ""
    for source in (message, first.traceback or ""):
        for prefix in _INPUT_ERROR:
            _, found, text = ("\n" + source).rpartition("\n" + prefix)
            if found:
                return text.rstrip()
    return message.rstrip() if message and first.traceback is None else None


def _headline(outcome: Outcome, first: RankOutcome) -> str:
    if first.signal is not None:
        how = f"signal {first.signal} ({signal_name(first.signal)})"
    else:
        how = f"exit code {first.exit_code}"
    return f"rank {first.rank} of {outcome.world_size} failed first: {how}"


def _details(outcome: Outcome, first: RankOutcome) -> list[tuple[str, str]]:
    details = [
        (
            "host",
            f"{first.host} (node rank {first.node_rank}, local rank {first.local_rank}, pid {first.pid})",
        )
    ]
    if first.ended_wall_s is not None:
        when = datetime.datetime.fromtimestamp(first.ended_wall_s).astimezone()
        after_s = first.ended_wall_s - outcome.started_wall_s
        details.append(
            ("time", f"{when.isoformat(sep=' ', timespec='milliseconds')}, {after_s:.1f} s after the start")
        )
    others = [item.rank for item in outcome.ranks if item.failed and item.rank != first.rank]
    if others:
        shown = ", ".join(map(str, others[:8])) + (", …" if len(others) > 8 else "")
        details.append(("also", f"ended afterwards, as a rule because of it: rank {shown}"))
    if outcome.restarts:
        details.append(("restarts", f"{outcome.restarts} before this"))
    if first.log:
        details.append(("log", first.log))
    if first.message:
        details.append(("error", first.message.rstrip().replace("\n", "\n           ")))
    return details
