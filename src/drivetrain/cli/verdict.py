"""The cause of a failed job, last on the screen and in outcome.json; what `train` and `launch` end with."""

from __future__ import annotations

import contextlib
import json

from drivetrain.cli.streams import say
from drivetrain.spec.exit_codes import ExitCode
from drivetrain.spec.outcome import Outcome
from drivetrain.spec.run_dir import RunDir

_NOTHING = ("no_problem_found", "not_enough_info")


def tell_verdict(run_dir: RunDir, outcome: Outcome) -> None:
    """Says why the job failed where its logs tell, and keeps that beside how it ended. Never raises: what was
    known of the failure has been said."""
    if outcome.earliest_failure is None or outcome.exit_code == ExitCode.USAGE:
        return
    from drivetrain.diagnose.logs import diagnose_run
    from drivetrain.diagnose.show import verdict_text

    try:
        verdict = diagnose_run(run_dir.path)
    except Exception as error:  # noqa: BLE001 - a rule's mistake must not hide the failure itself
        say(f"diagnose could not read the logs: {type(error).__name__}: {error}")
        return
    if verdict.cause in _NOTHING or verdict.confidence == "low":
        return
    say(verdict_text(verdict))
    with contextlib.suppress(OSError, ValueError):
        document = json.loads(run_dir.outcome.read_text(encoding="utf-8"))
        document["verdict"] = verdict.to_json()
        beside = run_dir.outcome.with_name(".outcome.json.new")
        beside.write_text(json.dumps(document, indent=2), encoding="utf-8")
        beside.replace(run_dir.outcome)
