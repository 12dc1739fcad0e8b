"""`parity`: the same training under several strategies, each compared with the single-process run.

All trials share one launch (see `parity_worker`); what they recorded is read and compared here, without
torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from drivetrain.bench.parity_candidates import REFERENCE, Candidate
from drivetrain.bench.parity_compare import Comparison, compare
from drivetrain.bench.parity_errors import losses
from drivetrain.bench.parity_plan import PROGRESS_MARK, Plan, Trial, trial_folder, write_plan
from drivetrain.bench.parity_records import TrialRecord
from drivetrain.config.dump import write
from drivetrain.config.schema import RunConfig
from drivetrain.launch.environment import launcher_environment, thread_variables
from drivetrain.launch.torchrun import launch
from drivetrain.spec.errors import ExplainedError, InputError
from drivetrain.spec.job import LaunchRequest
from drivetrain.spec.outcome import Outcome

Say = Callable[[str], None]
ConfigOf = Callable[[Candidate], RunConfig]


class TrialsEndedError(RuntimeError):
    """The processes did not get through the trials: interrupted, killed, or at fault themselves."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"the trials ended with exit code {outcome.exit_code}")
        self.outcome = outcome


@dataclass(frozen=True, kw_only=True)
class Result:
    """A candidate and how it compares."""

    candidate: Candidate
    comparison: Comparison


@dataclass(frozen=True, kw_only=True)
class Parity:
    """What a comparison found.

    Attributes:
        steps: as many as were trained.
        batch: how the reference cuts the global batch, in words.
        losses: the reference's, by step.
    """

    steps: int
    batch: str
    losses: tuple[float, ...]
    results: tuple[Result, ...]

    def has(self, verdict: str) -> bool:
        return any(result.comparison.verdict == verdict for result in self.results)


def run_parity(
    candidates: Sequence[Candidate], config_of: ConfigOf, *, num_steps: int, folder: Path, say: Say
) -> Parity:
    """Trains the reference and each candidate for `num_steps` steps in `folder`, and compares them.

    Where one differs by what may be rounding, the reference is run once more with its samples in reverse
    order, to see how far rounding alone goes.

    Args:
        config_of: the run file for a candidate, the reference (`single` on one rank) included.

    Raises:
        InputError: the recipe itself cannot be trained.
        ExplainedError: the reference failed.
        TrialsEndedError: see there.
    """
    first = Candidate(strategy=REFERENCE, world_size=1)
    runnable = [candidate for candidate in candidates if candidate.layout is not None]
    trials = _written(folder, [first, *runnable], config_of)
    records = run_trials(Plan(folder=folder, num_steps=num_steps, trials=trials), say)
    reference = records[0]
    _check_reference(reference, folder)
    found = {id(c): compare(reference, record) for c, record in zip(runnable, records[1:], strict=True)}
    if any(_may_be_rounding(item) for item in found.values()) and not _draws_random(reference):
        rounding = _run_reversed(folder, first, config_of, num_steps, say)
        pairs = zip(runnable, records[1:], strict=True)
        found = {id(c): compare(reference, record, rounding) for c, record in pairs}
    facts = reference.facts
    return Parity(
        steps=len(reference.ranks[0].steps),
        batch=facts.batch if facts is not None else "",
        losses=tuple(losses(reference).values()),
        results=tuple(
            Result(
                candidate=candidate,
                comparison=found.get(id(candidate))
                or Comparison(verdict="not_checked", reason=candidate.reason),
            )
            for candidate in candidates
        ),
    )


def run_trials(plan: Plan, say: Say) -> list[TrialRecord]:
    """Launches the plan's trials; what their ranks recorded, in order.

    Raises:
        TrialsEndedError: see there. A trial that fails is none of these.
    """
    write_plan(plan)
    threads, _ = thread_variables(plan.world_size, launcher_environment())
    request = LaunchRequest(
        command=(sys.executable, "-u", "-m", "drivetrain.bench.parity_worker", str(plan.folder)),
        folder=plan.folder,
        nproc_per_node=plan.world_size,
        # The question whether CUDA is there must not initialise it: the ranks fork.
        environment={**threads, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
    )
    outcome = launch(request, screen=lambda text: _show(text, say), note=say)
    if outcome.exit_code:
        raise TrialsEndedError(outcome)
    return [trial.read() for trial in plan.trials]


def _show(text: str, say: Say) -> None:
    """Of what rank 0 prints, the lines meant for the screen; the rest is in its log."""
    for line in text.splitlines():
        if line.startswith(PROGRESS_MARK):
            say(line)


def _written(
    folder: Path, candidates: Sequence[Candidate], config_of: ConfigOf, *, reverses: bool = False
) -> tuple[Trial, ...]:
    trials = []
    for index, candidate in enumerate(candidates):
        own = trial_folder(folder, index, candidate.name, candidate.world_size)
        trial = Trial(
            name=f"{candidate.name}, samples reversed," if reverses else candidate.name,
            strategy=candidate.strategy,
            world_size=candidate.world_size,
            folder=own,
            reverses=reverses,
        )
        write(config_of(candidate), trial.config, ())
        trials.append(trial)
    return tuple(trials)


def _check_reference(reference: TrialRecord, folder: Path) -> None:
    if reference.status == "refused":
        asked, _, do = reference.reason.rpartition(" → ")
        raise InputError("the single-process run", asked, do)
    if reference.status == "failed":
        raise ExplainedError(
            "the single-process run, which the strategies are compared with",
            f"it failed: {reference.reason}",
            f"its output is in {folder / 'logs'}",
        )


def _may_be_rounding(comparison: Comparison) -> bool:
    difference = comparison.difference
    if difference is None:
        return False
    is_late = difference.step > 1 and difference.what in ("gradient", "gradient_norm", "weight")
    return is_late or difference.cause.name in ("reduction_order", "optimizer", "unknown")


def _draws_random(reference: TrialRecord) -> bool:
    """Then the reverse order would give each sample other random numbers."""
    return any(step.drew_random for rank in reference.ranks for step in rank.steps.values())


def _run_reversed(
    folder: Path, first: Candidate, config_of: ConfigOf, num_steps: int, say: Say
) -> TrialRecord | None:
    own = folder / "rounding"
    own.mkdir()
    trials = _written(own, [first], config_of, reverses=True)
    record = run_trials(Plan(folder=own, num_steps=num_steps, trials=trials), say)[0]
    return record if record.status == "done" else None
