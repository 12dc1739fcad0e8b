"""`drivetrain train`: from a run file to ranks that train, or to the one thing that stands in the way.

Started by hand it checks everything it can without torch, creates the run's folder and launches the ranks.
Started by torchrun, mpirun or srun it is itself one rank.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.cli.leased_gpus import leased_gpus
from drivetrain.cli.options import TrainArguments, train_options
from drivetrain.cli.streams import say, show
from drivetrain.cli.verdict import tell_verdict
from drivetrain.config.overrides import from_environment
from drivetrain.spec.batch import plan_batches
from drivetrain.spec.errors import InputError
from drivetrain.spec.exit_codes import ExitCode
from drivetrain.spec.job import DEADLINE_VARIABLE, LaunchRequest
from drivetrain.spec.layout import plan_layout, strategy_of
from drivetrain.spec.rank_env import RankEnv, read_rank_env
from drivetrain.spec.run_dir import RunDir

if TYPE_CHECKING:
    from drivetrain.config.resolve import Resolved
    from drivetrain.config.schema import RunConfig
    from drivetrain.launch.binding import Binding
    from drivetrain.spec.outcome import Outcome


# A rank whose peer has gone raises within it, or is stuck: what it has not saved by then it cannot save.
_FAILURE_GRACE_S = 0.5


def run(arguments: TrainArguments) -> int:
    """Trains, or prints what would be done; returns the exit code.

    Raises:
        InputError: the run cannot be made; nothing has been created.
    """
    environ = dict(os.environ)
    config, notes = _load(arguments, environ)
    if arguments.print_config:
        print(_config_text(config, notes), end="")
        return 0
    rank_env = read_rank_env(environ)
    if rank_env.launcher != "none" and not arguments.dry_run:
        if arguments.gpus is not None:
            raise InputError(
                f"--gpus {arguments.gpus}",
                f"this is already a rank, started by {rank_env.launcher}",
                f"lease around the launcher: drivetrain gpus lease -n {arguments.gpus} -- …",
            )
        return _run_as_rank(config, rank_env, environ, notes)
    with leased_gpus(arguments.gpus, is_dry=arguments.dry_run) as variables:
        return _run_as_launcher(config, environ, notes, arguments, variables)


command = train_options(run)


def _load(arguments: TrainArguments, environ: dict[str, str]) -> tuple[RunConfig, tuple[str, ...]]:
    from drivetrain.config.load import load_with_advice
    from drivetrain.config.recipe_files import recipe_names

    # Under another launcher the ranks exist already: its variables say so, not PET_*.
    overrides = (*from_environment(environ), *arguments.overrides)
    has_task = any(override.key == "task" for override in arguments.overrides)
    if arguments.recipe is None and not has_task:
        raise InputError(
            "a run without a recipe",
            "neither a run file nor a --task was named",
            f"for example drivetrain train digits; the recipes are {', '.join(recipe_names())}",
        )
    return load_with_advice(arguments.recipe, overrides)


def _run_as_rank(
    config: RunConfig, rank_env: RankEnv, environ: dict[str, str], notes: tuple[str, ...]
) -> int:
    path = Path(config.output) if config.output else _shared_folder(config, rank_env, environ)
    run_dir = RunDir(path)
    if rank_env.is_first:
        from drivetrain.cli.run_folder import check_folder, create_folder
        from drivetrain.config.dump import write

        # A restarted job finds its own folder: it is not another run's.
        check_folder(run_dir, resume="auto" if rank_env.restart_count else config.resume)
        create_folder(run_dir)
        run_dir.launch.mkdir(exist_ok=True)
        started = f"started by {rank_env.launcher}, {rank_env.world_size} ranks"
        write(config, run_dir.asked_config, (started, *notes))
        for line in notes:
            say(line)
    from drivetrain.report.progress import ProgressDisplay
    from drivetrain.train.worker import run_worker

    if not rank_env.is_first:
        return run_worker(config, path)
    # Nobody else shows this run: its launcher knows nothing of it.
    with ProgressDisplay(run_dir, force_plain=True):
        return run_worker(config, path)


def _shared_folder(config: RunConfig, rank_env: RankEnv, environ: dict[str, str]) -> Path:
    from drivetrain.cli.run_folder import shared_folder

    return shared_folder(config.name, environ, rank_env)


def _run_as_launcher(
    config: RunConfig,
    environ: dict[str, str],
    notes: tuple[str, ...],
    arguments: TrainArguments,
    variables: dict[str, str],
) -> int:
    """With the lease's `variables` set for the ranks, if there is one."""
    from drivetrain.cli.run_folder import create_folder, remove_created
    from drivetrain.config.dump import write
    from drivetrain.launch.binding import Binding
    from drivetrain.launch.environment import thread_variables
    from drivetrain.launch.lock import hold_folder

    resolved = _resolve(config, {**environ, **variables})
    run_dir = RunDir(_folder(config))
    threads, why_threads = thread_variables(resolved.nproc_per_node, environ)
    binding = _bind(config, resolved, {**environ, **variables}) if arguments.is_bound else Binding()
    request = _request(config, resolved, run_dir, {**variables, **threads, **binding.environment})
    request = dataclasses.replace(request, pinnings=binding.pinnings)
    _check(config, request, resolved, run_dir)
    if arguments.dry_run:
        from drivetrain.launch.render import render_command

        print(render_command(request), end="")
        return 0
    for line in (*notes, *filter(None, (why_threads,)), *binding.lines):
        say(line)
    created = create_folder(run_dir)
    with hold_folder(request) as lock:  # before anything in it is overwritten, or removed
        try:
            write(config, run_dir.asked_config, (*resolved.notes(), *notes))
            code = _launch_until_it_fits(request, config.global_batch, run_dir, lock)
        except InputError:  # no rank has started: the port is taken, say
            remove_created(created)
            raise
        # Where nothing was trained (the trainer writes config.yaml when set-up has succeeded) what was given
        # could not be used; the ranks have said why, and the folder is of no use.
        if code == ExitCode.USAGE and not run_dir.is_used_for_training:
            remove_created(created)
    return code


def _bind(config: RunConfig, resolved: Resolved, environ: dict[str, str]) -> Binding:
    from drivetrain.launch.binding import Binding, bind

    if resolved.device != "cuda":
        return Binding()
    return bind(resolved.nproc_per_node, environ, num_nodes=config.launch.max_nodes, one_gpu_each=True)


def _folder(config: RunConfig) -> Path:
    from drivetrain.cli.run_folder import fresh_folder

    if config.output is not None:
        return Path(config.output)
    if config.launch.max_nodes == 1:
        return fresh_folder(config.name)
    if config.launch.rdzv_id is not None:
        return Path("runs") / f"{config.name}-{config.launch.rdzv_id}"
    raise InputError(
        f"{config.launch.nnodes} machines",
        "each would choose a folder of its own for the run",
        "name one that all machines share: --output FOLDER",
    )


def _resolve(config: RunConfig, environ: dict[str, str] | None = None) -> Resolved:
    from drivetrain.config.resolve import Resources, resolve
    from drivetrain.hardware.cpu import usable_cpus
    from drivetrain.hardware.gpus import visible_gpus

    gpus, cpus = visible_gpus(environ), usable_cpus()
    resources = Resources(
        num_gpus=gpus.count,
        gpu_reason=gpus.reason,
        num_cpus=cpus.count,
        cpu_reason=cpus.reason,
        num_gpus_by_files=gpus.count_by_files,
    )
    return resolve(config, resources)


def _config_text(config: RunConfig, notes: tuple[str, ...]) -> str:
    from drivetrain.config.dump import dump

    try:
        resolved = _resolve(config).notes()
    except InputError as error:  # the text is still what was asked for; that it cannot run here is a note
        resolved = (f"on this machine it cannot run: {error}",)
    return dump(config, (*resolved, *notes))


def _request(
    config: RunConfig, resolved: Resolved, run_dir: RunDir, environment: dict[str, str]
) -> LaunchRequest:
    launch = config.launch
    return LaunchRequest(
        command=(sys.executable, "-u", "-m", "drivetrain.train.worker", str(run_dir.path)),
        folder=run_dir.path,
        nproc_per_node=resolved.nproc_per_node,
        min_nodes=launch.min_nodes,
        max_nodes=launch.max_nodes,
        node_rank=launch.node_rank,
        master_addr=launch.master_addr,
        master_port=launch.master_port,
        rdzv_endpoint=launch.rdzv_endpoint,
        rdzv_id=launch.rdzv_id,
        local_addr=launch.local_addr,
        max_restarts=launch.max_restarts,
        environment=environment | _deadline(launch.time_left_s),
        stop_grace_s=launch.stop_grace_s,
        failure_grace_s=_FAILURE_GRACE_S,
        imports=run_dir.imports,
    )


def _deadline(time_left_s: float | None) -> dict[str, str]:
    return {} if time_left_s is None else {DEADLINE_VARIABLE: f"{time.time() + time_left_s:.3f}"}


def _check(config: RunConfig, request: LaunchRequest, resolved: Resolved, run_dir: RunDir) -> None:
    """Everything that can be refused before anything is created, without torch."""
    from drivetrain.cli.run_folder import check_folder
    from drivetrain.launch.check import check

    check(request)
    world_size = request.max_nodes * resolved.nproc_per_node
    layout = plan_layout(strategy_of(config.strategy, world_size), world_size, config.mesh.degrees())
    plan_batches(
        global_batch=config.global_batch,
        num_data_ranks=layout.num_data_ranks,
        micro_batch=None if config.micro_batch == "auto" else config.micro_batch,
        num_stages=layout.pp,
    )
    if config.data.kind == "image_folder" and config.data.path is not None and config.task is None:
        from drivetrain.data.image_folder import scan_both
        from drivetrain.data.num_classes import settle_num_classes

        train, _ = scan_both(config.data.path, val_fraction=config.data.val_fraction)
        settle_num_classes(config.model.num_classes, in_data=len(train.classes))
    if config.data.kind == "text" and config.data.path is not None:
        from drivetrain.data.token_file import read_header
        from drivetrain.data.token_places import token_places

        for path in token_places(config.data.path):
            read_header(path)
    # On a shared file system machine 0 may have begun to write before another one looks.
    is_first = request.is_single_node or request.node_rank == 0
    check_folder(run_dir, resume=config.resume if is_first or config.resume != "none" else "auto")


def _with_early_leavers(outcome: Outcome, run_dir: RunDir) -> Outcome:
    """The outcome, failed if a rank ended with exit code 0 without having trained to the end: the user's code
    may call os._exit(0), and never 0 after a rank failed."""
    from drivetrain.telemetry.events import RunEnded
    from drivetrain.telemetry.reader import last_event

    if outcome.exit_code != ExitCode.DONE:
        return outcome
    paths = {rank.rank: run_dir.rank_events(rank.rank) for rank in outcome.ranks}
    lasts = {rank: last_event(path) if path.exists() else None for rank, path in paths.items()}
    left = [
        rank for rank, last in lasts.items() if not (isinstance(last, RunEnded) and last.status == "done")
    ]
    if not left:
        return outcome
    who = f"rank {left[0]}" if len(left) == 1 else f"ranks {', '.join(map(str, left))}"
    error = f"{who} ended with exit code 0 before training had ended (does the task call os._exit?)"
    return dataclasses.replace(outcome, exit_code=int(ExitCode.FAILED), error=error)


def _launch_until_it_fits(request: LaunchRequest, global_batch: int, run_dir: RunDir, lock: int) -> int:
    """Launches, and anew each time that a rank runs out of memory and leaves a smaller micro-batch."""
    from drivetrain.config.fitted_batch import fitted_micro_batch

    while True:
        before = fitted_micro_batch(run_dir)
        outcome = _launch(request, run_dir, lock)
        fitted = fitted_micro_batch(run_dir)
        if fitted == before or outcome.earliest_failure is None or not request.is_single_node:
            return outcome.exit_code
        say(
            f"rank {outcome.earliest_failure.rank} ran out of memory: starting anew with micro-batches of at"
            f" most {fitted}; the global batch stays {global_batch} (micro_batch: auto)"
        )


def _launch(request: LaunchRequest, run_dir: RunDir, lock: int) -> Outcome:
    """Runs the ranks with the live display; ends with what to look at or, last, with why it failed."""
    from drivetrain.launch.describe import describe_failure
    from drivetrain.launch.torchrun import launch
    from drivetrain.report.progress import ProgressDisplay
    from drivetrain.report.summary import summarise

    with ProgressDisplay(run_dir, num_ranks=request.max_nodes * request.nproc_per_node) as display:
        # The launcher passes rank 0's output on with its line ends; the display draws lines.
        outcome = launch(
            request,
            screen=lambda text: display.line(text.rstrip("\r\n")),
            note=display.line,
            lock=lock,
        )
    outcome = _with_early_leavers(outcome, run_dir)
    if outcome.exit_code != ExitCode.USAGE:
        show(summarise(run_dir, outcome), what="the summary")
    if problem := describe_failure(outcome):
        say(problem)
    tell_verdict(run_dir, outcome)
    return outcome
