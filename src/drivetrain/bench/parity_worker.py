"""One rank of a comparison: `python -m drivetrain.bench.parity_worker FOLDER`.

Importing torch takes longer than most trials. This process therefore imports once and forks a child for each
trial: the child starts from clean state, joins a process group of its own, and may die without harm to the
next trial. Nothing here may start threads or touch CUDA before a fork.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import warnings
from pathlib import Path

from drivetrain.bench.parity_plan import PROGRESS_MARK, Plan, Trial, read_plan
from drivetrain.spec.exit_codes import ExitCode, exit_code_for_signal
from drivetrain.spec.rank_env import read_rank_env

_LOOK_S = 0.02
# From the first rank that did not end well: how long the others may take to say why themselves, or to end.
_GRACE_S = 3.0


def run_trials(plan: Plan, rank: int) -> None:
    """Runs this rank's part of each trial, in turn. Called by as many ranks as the largest trial has."""
    deadline_s = time.monotonic()
    for trial in plan.trials:
        # What waits for others would wait at most for all the trials before.
        deadline_s += trial.timeout_s + 2 * _GRACE_S
        if rank >= trial.world_size:
            continue
        if rank == 0:
            _say(trial)
            trial.started.touch()
        elif not _wait_until_started(plan, trial, deadline_s):
            return
        _run_child(trial, rank, plan.num_steps)
        if rank == 0:
            _wait_for_others(trial)
            if trial is plan.trials[0] and set(trial.ended().values()) != {0}:
                plan.over.touch()
                return


def _say(trial: Trial) -> None:
    ranks = "1 process" if trial.world_size == 1 else f"{trial.world_size} processes"
    sys.stdout.write(f"{PROGRESS_MARK}{trial.name} on {ranks} …\n")
    sys.stdout.flush()


def _wait_until_started(plan: Plan, trial: Trial, deadline_s: float) -> bool:
    """Whether rank 0 has begun; if it has died, the launcher ends this process too."""
    while not trial.started.exists():
        if plan.over.exists() or time.monotonic() > deadline_s:
            return False
        time.sleep(_LOOK_S)
    return True


def _run_child(trial: Trial, rank: int, num_steps: int) -> None:
    """Forks, and waits for the child; ends it where it is late, or where another rank has failed."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python 3.12 warns of threads, which here are OpenBLAS's idle ones; OpenBLAS restarts them itself.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _become_trial(trial, rank, num_steps)
    try:
        code = _wait_for_child(child, trial)
    except BaseException:  # this process is being ended
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    trial.mark_ended(rank, code)


def _become_trial(trial: Trial, rank: int, num_steps: int) -> None:
    """The child's whole life; never returns."""
    code = int(ExitCode.FAILED)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        from drivetrain.bench.parity_trial import run_trial

        code = run_trial(trial, rank, num_steps)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait_for_child(child: int, trial: Trial) -> int | None:
    """The child's exit code, or minus the signal that ended it; None where that had to be done here."""
    late_s = time.monotonic() + trial.timeout_s
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        now_s = time.monotonic()
        if any(code != 0 for code in trial.ended().values()):
            late_s = min(late_s, now_s + _GRACE_S)
        if now_s > late_s:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(_LOOK_S)


def _wait_for_others(trial: Trial) -> None:
    """Until every rank's child has ended: each is ended by its own parent, in time."""
    while len(trial.ended()) < trial.world_size:
        time.sleep(_LOOK_S)


def _import_early(plan: Plan) -> None:
    """What the trials will need."""
    for module in ("torch._dynamo", "drivetrain.bench.parity_trial"):  # an optimizer imports the first
        importlib.import_module(module)
    from drivetrain.engine.strategies import load_strategy
    from drivetrain.spec.errors import InputError

    for name in {trial.strategy for trial in plan.trials}:
        try:
            load_strategy(name)
        except InputError:
            continue  # the trial itself will say so


def main() -> None:
    plan = read_plan(Path(sys.argv[1]))
    rank = read_rank_env(os.environ).rank
    # As a KeyboardInterrupt, so that the child is ended first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _import_early(plan)
        run_trials(plan, rank)
    except KeyboardInterrupt:
        os._exit(exit_code_for_signal(signal.SIGTERM))


if __name__ == "__main__":
    main()
