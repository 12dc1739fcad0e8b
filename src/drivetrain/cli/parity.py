"""`drivetrain parity`: does a strategy train what one process would, and if not, where do they part?"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drivetrain.cli.options import DAILY_FLAGS, TrainCommand
from drivetrain.cli.streams import say, show
from drivetrain.config.launch_words import split_layout
from drivetrain.config.overrides import Override, from_command_line
from drivetrain.spec.batch import plan_batches
from drivetrain.spec.errors import ExplainedError, InputError
from drivetrain.spec.exit_codes import ExitCode

if TYPE_CHECKING:
    from drivetrain.bench.parity import Parity
    from drivetrain.bench.parity_candidates import Candidate
    from drivetrain.config.schema import RunConfig

_COMPARABLE = {"precision": "fp32", "compile": "false", "deterministic": "true"}
"""What makes numbers comparable, whatever the recipe says."""

# Keys that the verb itself decides, and what to do instead.
_TAKEN = {
    "precision": "parity compares in fp32: leave it out",
    "compile": "parity compares eager computation: leave it out",
    "strategy": "name strategies by --strategies",
    "mesh": "write degrees behind the strategy: --strategies tensor:tp=2",
    "launch": "give the number of processes by -j 1xN or --world-sizes",
    "output": "parity writes to a temporary folder and keeps it where something differs",
    "resume": "parity starts from the first step: leave it out",
}
_FLAGS = tuple(flag for flag in DAILY_FLAGS if flag.key not in _TAKEN)

_HELP = """Train RECIPE for some steps under each strategy and compare with one process; or compare two runs.

At every step: which samples came, what they held, the loss; at the first and the last also gradients (before
clipping) and weights. The first difference is named, with its likely cause. Computed in fp32 with
deterministic kernels, not compiled, without evaluation and checkpoints; all else as in the recipe.

Exit code: 0 all equal, 4 a difference, 1 a strategy failed, 2 usage, or nothing could be compared. What
cannot run here is listed as not checked.

\b
drivetrain parity runs/a runs/b                       # the first step at which two finished runs part
drivetrain parity digits --strategies all -j 1x2
drivetrain parity gpt --strategies ddp --world-sizes 1,2,3
drivetrain parity gpt --strategies fsdp:tp=2,pipeline:pp=2,dp_replicate=2 -j 1x4 --micro-batch 2

\b
--json prints one object: recipe, steps, settings, reference {strategy, world_size, batch, losses},
folder (kept, or null), and results, a list of {strategy, layout, world_size,
status: equal|differs|failed|not_checked, reason, max_rel_loss_error, max_rel_gradient_error,
max_rel_weight_error, first_difference {step, what, name, expected, found, likely_cause, evidence}}.
"""


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The command line."""

    recipe: str | None
    strategies: str
    layout: str | None
    world_sizes: str | None
    steps: int
    as_json: bool
    overrides: tuple[Override, ...]

    @property
    def name(self) -> str:
        """Of what is trained, for display."""
        task = next((item.text for item in self.overrides if item.key == "task"), None)
        return self.recipe or task or ""


def run(asked: _Asked) -> int:
    """Compares and prints; returns the exit code.

    Raises:
        InputError: a mistake on the command line, or a recipe that cannot be trained.
    """
    from drivetrain.bench.parity import TrialsEndedError, run_parity
    from drivetrain.bench.parity_candidates import candidates, check_gpus

    _check_overrides(asked.overrides)
    settings = _settings(asked.overrides)
    found = candidates(asked.strategies, _world_sizes(asked))
    config = _config(asked, settings, ())
    _check_batch(config, found)
    found = check_gpus(found, _num_gpus(config, max(candidate.world_size for candidate in found)))
    with _temporary_folder() as folder:
        try:
            parity = run_parity(
                found,
                lambda candidate: _config(asked, settings, _placed(candidate)),
                num_steps=asked.steps,
                folder=folder.path,
                say=say,
            )
        except TrialsEndedError as error:
            from drivetrain.launch.describe import describe_failure

            say(describe_failure(error.outcome))
            return error.outcome.exit_code
        except ExplainedError as error:
            folder.is_kept = not isinstance(error, InputError)
            raise
        folder.is_kept = parity.has("differs") or parity.has("failed")
        kept = str(folder.path) if folder.is_kept else None
        _print(parity, asked, settings, kept)
    return _exit_code(parity)


def _print(parity: Parity, asked: _Asked, settings: dict[str, str], kept: str | None) -> None:
    from drivetrain.bench.parity_report import as_json, as_text

    if asked.as_json:
        document = as_json(parity, recipe=asked.name, settings=settings, folder=kept)
        show(json.dumps(document, indent=2), what="the result")
    else:
        show(as_text(parity, recipe=asked.name, settings=settings, folder=kept), what="the result")


def _exit_code(parity: Parity) -> ExitCode:
    if parity.has("differs"):
        return ExitCode.PARITY
    if parity.has("failed"):
        return ExitCode.FAILED
    if not parity.has("equal"):
        say("drivetrain: nothing was compared: none of these strategies can run here")
        return ExitCode.USAGE
    return ExitCode.DONE


@dataclass
class _Folder:
    path: Path
    is_kept: bool = False


@contextlib.contextmanager
def _temporary_folder() -> Iterator[_Folder]:
    folder = _Folder(Path(tempfile.mkdtemp(prefix="drivetrain-parity-")))
    try:
        yield folder
    finally:
        if not folder.is_kept:
            shutil.rmtree(folder.path, ignore_errors=True)


def _world_sizes(asked: _Asked) -> tuple[int, ...]:
    from drivetrain.bench.parity_candidates import parse_world_sizes

    most = None
    if asked.layout is not None:
        nodes, processes = split_layout(asked.layout)
        if nodes != "1" or not processes.isdigit() or int(processes) < 1:
            raise InputError(
                f"-j {asked.layout}", "parity runs on one machine", "write -j 1xN, with a number of processes"
            )
        most = int(processes)
    if asked.world_sizes is None:
        return (most if most is not None else 2,)
    sizes = parse_world_sizes(asked.world_sizes)
    if most is not None and max(sizes) > most:
        raise InputError(
            f"--world-sizes {asked.world_sizes} with -j {asked.layout}",
            f"{max(sizes)} processes are more than {most}",
            "leave -j out, or give as many",
        )
    return sizes


def _check_overrides(overrides: Sequence[Override]) -> None:
    for override in overrides:
        section = override.key.partition(".")[0]
        if section in _TAKEN:
            raise InputError(override.where, "parity decides this itself", _TAKEN[section])


def _settings(overrides: Sequence[Override]) -> dict[str, str]:
    """What is forced, but for what the user has said."""
    said = {item.key: item.text or "true" for item in overrides}
    return {key: said.get(key, value) for key, value in _COMPARABLE.items()}


def _config(asked: _Asked, settings: dict[str, str], placed: Sequence[Override]) -> RunConfig:
    from drivetrain.config.load import load
    from drivetrain.spec.layout import AXES

    if asked.recipe is None and not any(item.key == "task" for item in asked.overrides):
        raise InputError(
            "a comparison without a recipe",
            "neither a run file nor a --task was named",
            "for example drivetrain parity digits --strategies all",
        )
    forced = {
        **dict.fromkeys((f"mesh.{axis}" for axis in AXES), "null"),
        "strategy": "auto",
        "launch.nproc_per_node": "auto",
        "launch.nnodes": "1",
        "resume": "none",
        **settings,
    }
    ours = [Override(key=key, text=text, where="drivetrain parity") for key, text in forced.items()]
    return load(asked.recipe, (*ours, *asked.overrides, *placed))


def _placed(candidate: Candidate) -> tuple[Override, ...]:
    values = {"strategy": candidate.strategy}
    values |= {f"mesh.{axis}": str(degree) for axis, degree in candidate.mesh.items()}
    where = f"--strategies {candidate.name}"
    return tuple(Override(key=key, text=text, where=where) for key, text in values.items())


def _check_batch(config: RunConfig, found: Sequence[Candidate]) -> None:
    for candidate in found:
        if candidate.layout is not None:
            plan_batches(
                global_batch=config.global_batch,
                num_data_ranks=candidate.layout.num_data_ranks,
                micro_batch=None if config.micro_batch == "auto" else config.micro_batch,
                num_stages=candidate.layout.pp,
            )


def _num_gpus(config: RunConfig, num_processes: int) -> int:
    """How many GPUs this machine has for the comparison; 0 where it is made on the CPU.

    Raises:
        InputError: GPUs are used, and there are fewer than processes.
    """
    from drivetrain.config.resolve import Resources, resolve
    from drivetrain.hardware.cpu import usable_cpus
    from drivetrain.hardware.gpus import visible_gpus

    gpus, cpus = visible_gpus(), usable_cpus()
    resources = Resources(
        num_gpus=gpus.count,
        gpu_reason=gpus.reason,
        num_cpus=cpus.count,
        cpu_reason=cpus.reason,
        num_gpus_by_files=gpus.count_by_files,
    )
    launch = config.launch.model_copy(update={"nproc_per_node": num_processes})
    resolved = resolve(config.model_copy(update={"launch": launch}), resources)
    if resolved.device == "cpu":
        return 0
    return gpus.count if isinstance(gpus.count, int) else gpus.count_by_files or 0


def _run(**values: Any) -> int:
    named: tuple[str, ...] = values["recipe"]
    if len(named) == 2:
        return _compare_runs(*named, as_json=values["as_json"])
    if len(named) > 2:
        raise InputError(" ".join(named), "more than two were named", "name a recipe, or two runs")
    if values["strategies"] is None:
        do = "add --strategies all, or name a second run"
        raise InputError(f"parity {' '.join(named)}", "nothing is named to compare it with", do)
    overrides = list(click.get_current_context().meta["overrides"])
    for flag in _FLAGS:
        value = values[_parameter(flag.name)]
        if value is not None:
            overrides.append(from_command_line(flag.name, value, key=flag.key))
    return run(
        _Asked(
            recipe=named[0] if named else None,
            strategies=values["strategies"],
            layout=values["layout"],
            world_sizes=values["world_sizes"],
            steps=values["steps"],
            as_json=values["as_json"],
            overrides=tuple(overrides),
        )
    )


def _compare_runs(a: str, b: str, *, as_json: bool) -> int:
    from drivetrain.bench import run_comparison

    comparison = run_comparison.compare_runs(Path(a), Path(b))
    if as_json:
        show(json.dumps(run_comparison.as_json(comparison), indent=2), what="the result")
    else:
        show(run_comparison.as_text(comparison), what="the result")
    return ExitCode.PARITY if comparison.partings else ExitCode.DONE


def _parameter(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


command = TrainCommand(
    "parity",
    callback=_run,
    params=[
        click.Argument(["recipe"], nargs=-1, metavar="RECIPE | RUN_A RUN_B"),
        click.Option(
            ["--strategies"],
            metavar="all|NAME[:AXIS=N,…],…",
            help="Which to compare; with degrees of the mesh, if wanted. all: each there is, and from 4"
            " processes on ddp × tp, fsdp × tp and pp × dp.",
        ),
        click.Option(["-j", "layout"], metavar="1xP", help="P processes.  [1x2]"),
        click.Option(["--world-sizes"], metavar="N,…", help="Each of these numbers of processes."),
        click.Option(["--steps"], type=click.IntRange(min=1), default=20, help="Steps to train.  [20]"),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON; its keys are above."),
        *(click.Option([flag.name], metavar=flag.metavar, help=flag.help) for flag in _FLAGS),
    ],
    help=_HELP,
    epilog="Any key of the run file is set as in drivetrain train: --optim.clip-norm 1.0.",
)
