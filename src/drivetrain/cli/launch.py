"""`drivetrain launch`: any script on many processes, with logs, restarts and the first failing rank named."""

from __future__ import annotations

import datetime
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from drivetrain.cli.leased_gpus import OPTION_HELP, leased_gpus
from drivetrain.cli.streams import say
from drivetrain.cli.verdict import tell_verdict
from drivetrain.config.launch_words import split_layout, split_nodes
from drivetrain.spec.errors import InputError
from drivetrain.spec.exit_codes import ExitCode
from drivetrain.spec.run_dir import RunDir

if TYPE_CHECKING:
    from drivetrain.spec.job import LaunchRequest


@dataclass(frozen=True, kw_only=True)
class _Flags:
    """The command line as it was parsed; names as in torchrun."""

    nnodes: str
    nproc_per_node: str
    gpus: int | None
    node_rank: int | None
    master_addr: str | None
    master_port: int | None
    rdzv_endpoint: str | None
    rdzv_id: str | None
    rdzv_backend: str | None
    local_addr: str | None
    max_restarts: int
    monitor_interval: float
    standalone: bool
    module: bool
    no_python: bool
    output: Path | None
    env: tuple[str, ...]
    no_bind: bool
    dry_run: bool
    script: str
    args: tuple[str, ...]


@click.command(
    name="launch",
    context_settings={
        "token_normalize_func": lambda token: token.replace("_", "-"),  # torchrun takes both
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
    },
    short_help="Run any script on many processes.",
)
@click.option("-j", "layout", metavar="NODESxPROCS", help="Short for --nnodes and --nproc-per-node: 2x8.")
@click.option("--nnodes", default="1", envvar="PET_NNODES", metavar="N|MIN:MAX", help="Machines.")
@click.option(
    "--nproc-per-node",
    default="auto",
    envvar="PET_NPROC_PER_NODE",
    metavar="N|auto|gpu|cpu",
    help="Processes on this machine. auto: one a GPU, without GPUs two.",
)
@click.option("--gpus", type=int, metavar="N", help=OPTION_HELP)
@click.option("--node-rank", type=int, envvar="PET_NODE_RANK", help="This machine's number, from 0.")
@click.option("--master-addr", envvar="PET_MASTER_ADDR", help="Machine 0, as the others reach it.")
@click.option("--master-port", type=int, envvar="PET_MASTER_PORT", help="Where machine 0 listens.")
@click.option("--rdzv-endpoint", envvar="PET_RDZV_ENDPOINT", metavar="HOST:PORT", help="Rendezvous.")
@click.option("--rdzv-id", envvar="PET_RDZV_ID", help="The job's name at the rendezvous.")
@click.option(
    "--rdzv-backend",
    type=click.Choice(["static", "c10d"]),
    envvar="PET_RDZV_BACKEND",
    help="static: by --node-rank and --master-addr. c10d: by --rdzv-endpoint, also elastic.",
)
@click.option("--local-addr", envvar="PET_LOCAL_ADDR", help="This machine, as the others reach it.")
@click.option("--max-restarts", type=int, default=0, envvar="PET_MAX_RESTARTS", help="After failures. [0]")
@click.option("--monitor-interval", type=float, default=0.1, envvar="PET_MONITOR_INTERVAL", help="Seconds.")
@click.option("--standalone", is_flag=True, help="One machine, on a free port, whatever else is set.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module, run with python -m.")
@click.option("--no-python", is_flag=True, help="SCRIPT is a program, run as it is.")
@click.option("--output", type=click.Path(path_type=Path), help="Run directory. [runs/SCRIPT-TIME]")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Set for every rank; may be repeated.")
@click.option("--no-bind", is_flag=True, help="Leave the order of GPUs, CPUs and memory to the ranks.")
@click.option("--dry-run", is_flag=True, help="Print what would run, and run nothing.")
@click.option(
    "--host-store",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Run nothing; be the --rdzv-endpoint of elastic jobs, on a machine that outlives theirs.",
)
@click.argument("script", required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context, /, layout: str | None, script: str | None, host_store: int | None, **flags: Any
) -> int:
    """Run SCRIPT on many processes, on this machine or on several, with torchrun's flags.

    Every rank's output goes to logs/ in the run directory, rank 0's also to the screen. When a rank fails,
    the others are ended, and the rank that failed first is shown last, with its traceback.

    \b
    drivetrain launch --nproc-per-node 2 -- script.py --lr 0.1
    drivetrain launch -j 2x8 --node-rank 0 --master-addr node0 -- script.py
    drivetrain launch --nnodes 1:4 --rdzv-endpoint node0:29400 --rdzv-id job7 -- script.py
    """
    if host_store is not None:
        return _host_store(host_store, script)
    if script is None:
        raise click.MissingParameter(ctx=ctx, param_hint="'SCRIPT'", param_type="argument")
    if layout is not None:
        flags |= _split_layout(ctx, layout)
    return _run(_Flags(script=script, **flags))


def _host_store(port: int, script: str | None) -> int:
    if script is not None:
        raise InputError(
            f"--host-store {port} with {script}", "a store runs no script", "give one of them; & for both"
        )
    from drivetrain.launch.agent_store import serve_store

    serve_store(port, ready=lambda: say(f"a store for --rdzv-endpoint, on port {port}, until SIGTERM"))
    return ExitCode.DONE


def _run(flags: _Flags) -> int:
    with leased_gpus(flags.gpus, is_dry=flags.dry_run) as variables:
        return _run_on(flags, variables)


def _run_on(flags: _Flags, variables: dict[str, str]) -> int:
    """With the lease's `variables` set for the ranks, if there is one."""
    from drivetrain.launch.describe import describe_failure
    from drivetrain.launch.torchrun import launch, render_command

    request = _request(flags, variables)
    if flags.dry_run:
        click.echo(render_command(request), nl=False)
        return ExitCode.DONE
    say(f"run directory: {request.folder}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a rank may print what this terminal cannot show
    outcome = launch(request, screen=_show, note=say)
    if problem := describe_failure(outcome):
        say(problem)
    tell_verdict(RunDir(request.folder), outcome)
    return outcome.exit_code


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _request(flags: _Flags, variables: dict[str, str]) -> LaunchRequest:
    """Raises InputError for flags that contradict each other."""
    from drivetrain.launch.binding import Binding, bind
    from drivetrain.launch.environment import launcher_environment, thread_variables
    from drivetrain.spec.job import LaunchRequest

    min_nodes, max_nodes = (1, 1) if flags.standalone else split_nodes(flags.nnodes)
    environ = {**launcher_environment(), **variables}
    nproc, reason = _num_processes(flags.nproc_per_node, environ)
    environment = _split_environment(flags.env)
    given = {**environ, **environment}
    threads, threads_reason = thread_variables(nproc, given)
    binding = Binding() if flags.no_bind else bind(nproc, given, num_nodes=max_nodes, one_gpu_each=False)
    for line in (*filter(None, (reason, threads_reason)), *binding.lines):
        say(line)
    return LaunchRequest(
        command=_rank_command(flags),
        folder=flags.output or _default_folder(flags.script),
        nproc_per_node=nproc,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        max_restarts=flags.max_restarts,
        monitor_interval_s=flags.monitor_interval,
        environment={**variables, **threads, **environment, **binding.environment},
        pinnings=binding.pinnings,
        **_meeting_place(flags, max_nodes),
    )


def _meeting_place(flags: _Flags, max_nodes: int) -> dict[str, Any]:
    if flags.standalone:
        return {}
    place = {
        "node_rank": flags.node_rank,
        "master_addr": flags.master_addr,
        "master_port": flags.master_port,
        "local_addr": flags.local_addr,
        "rdzv_id": flags.rdzv_id,
    }
    if max_nodes == 1 or flags.rdzv_endpoint is None:
        # One machine has nobody to meet; torchrun's users write --rdzv-endpoint localhost:0 for that.
        if flags.rdzv_backend == "c10d" and max_nodes > 1:
            raise InputError(
                "--rdzv-backend c10d", "--rdzv-endpoint is missing", "give --rdzv-endpoint HOST:PORT"
            )
        return place
    if flags.rdzv_backend == "static":
        from drivetrain.launch.check import split_endpoint

        host, port = split_endpoint(flags.rdzv_endpoint)
        return {**place, "master_addr": host, "master_port": port}
    return {**place, "rdzv_endpoint": flags.rdzv_endpoint}


def _split_layout(ctx: click.Context, layout: str) -> dict[str, str]:
    for name, flag in (("nnodes", "--nnodes"), ("nproc_per_node", "--nproc-per-node")):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InputError(f"-j {layout} with {flag}", "both say the same thing", "give one of them")
    nodes, processes = split_layout(layout)
    return {"nnodes": nodes, "nproc_per_node": processes}


def _num_processes(text: str, environ: dict[str, str]) -> tuple[int, str | None]:
    """The number of processes, and why where the user did not say it."""
    if text.isdigit():
        return int(text), None
    if text not in ("auto", "gpu", "cpu"):
        raise InputError(f"--nproc-per-node {text}", "it is no number", "write a number, or auto, gpu or cpu")
    from drivetrain.hardware.cpu import usable_cpus
    from drivetrain.hardware.gpus import visible_gpus

    if text in ("auto", "gpu"):
        gpus = visible_gpus(environ)
        num_gpus = gpus.count if isinstance(gpus.count, int) else gpus.count_by_files
        if num_gpus is None:
            raise InputError(
                f"--nproc-per-node {text}",
                f"how many GPUs are here is unknown: {gpus.reason}",
                "give the number of processes yourself",
            )
        if num_gpus > 0:
            return num_gpus, f"{num_gpus} processes: one for each GPU ({gpus.reason})"
        if text == "gpu":
            raise InputError(
                "--nproc-per-node gpu", f"no GPU is visible here: {gpus.reason}", "give a number, or auto"
            )
    cpus = usable_cpus()
    count = cpus.count if text == "cpu" else min(2, cpus.count)
    return count, f"{count} processes: no GPU is used, and {cpus.count} CPUs are usable ({cpus.reason})"


def _rank_command(flags: _Flags) -> tuple[str, ...]:
    if flags.no_python and flags.module:
        raise InputError("--no-python with --module", "a module needs python", "give one of them")
    if flags.no_python:
        return (flags.script, *flags.args)
    if flags.module:
        return (sys.executable, "-u", "-m", flags.script, *flags.args)
    if not Path(flags.script).exists():
        raise InputError(
            f"the script {flags.script}",
            f"no such file, seen from {Path.cwd()}",
            "check its path; -m runs a module, --no-python any program",
        )
    return (sys.executable, "-u", flags.script, *flags.args)


def _split_environment(pairs: tuple[str, ...]) -> dict[str, str]:
    environment = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(
                f"--env {pair}", "it is not NAME=VALUE", "write for example --env NCCL_DEBUG=INFO"
            )
        environment[name] = value
    return environment


def _default_folder(script: str) -> Path:
    stem = Path(script).name.removesuffix(".py")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "script"
    return Path("runs") / f"{name}-{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}"
