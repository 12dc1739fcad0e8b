"""The flags of `drivetrain train`: each first-class flag stands for one key of the run file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from drivetrain.cli.leased_gpus import gpus_option
from drivetrain.config.launch_words import split_layout
from drivetrain.config.overrides import Override, from_command_line, split_overrides
from drivetrain.spec.errors import InputError


@dataclass(frozen=True)
class Flag:
    """`name` (with dashes) sets `key`; without a `metavar` it is a switch."""

    name: str
    key: str
    metavar: str | None
    help: str


DAILY_FLAGS = (
    Flag("--name", "name", "NAME", "Name of the run and its folder."),
    Flag("--task", "task", "FILE.py:FUNCTION", "Your own model, data and loss."),
    Flag("--strategy", "strategy", "NAME", "auto, single, ddp, fsdp, tensor, pipeline, …"),
    Flag("--device", "device", "NAME", "auto, cpu or cuda."),
    Flag("--global-batch", "global_batch", "N", "Samples a step over all ranks."),
    Flag("--micro-batch", "micro_batch", "N", "The most samples a rank runs at once, or auto."),
    Flag("--epochs", "epochs", "X", "Passes over the data."),
    Flag("--max-steps", "max_steps", "N", "Steps at most."),
    Flag("--lr", "optim.lr", "X", "Peak learning rate."),
    Flag("--precision", "precision", "NAME", "auto, fp32, tf32, bf16 or fp16."),
    Flag("--seed", "seed", "N", "Of weights, order and augmentation."),
    Flag("--workers", "data.workers", "N", "Loader processes a rank, or auto."),
    Flag("--resume", "resume", "auto|none|PATH", "Go on from a checkpoint."),
    Flag("--output", "output", "FOLDER", "The run's folder."),
)

LAUNCH_FLAGS = (
    Flag("--nproc-per-node", "launch.nproc_per_node", "N", "Processes on this machine, or auto, gpu, cpu."),
    Flag("--nnodes", "launch.nnodes", "N|MIN:MAX", "Machines."),
    Flag("--node-rank", "launch.node_rank", "N", "This machine's number."),
    Flag("--master-addr", "launch.master_addr", "HOST", "Where machine 0 listens."),
    Flag("--master-port", "launch.master_port", "PORT", "The port there."),
    Flag("--rdzv-endpoint", "launch.rdzv_endpoint", "HOST:PORT", "Rendezvous of the machines."),
    Flag("--rdzv-id", "launch.rdzv_id", "ID", "The job's name there."),
    Flag("--local-addr", "launch.local_addr", "HOST", "Address that others reach this machine by."),
    Flag("--max-restarts", "launch.max_restarts", "N", "How often all ranks start anew after a failure."),
    Flag("--time-left", "launch.time_left", "DURATION", "Save and end before that: 3h55m."),
    Flag("--standalone", "launch.standalone", None, "One machine by itself."),
)

_EPILOG = (
    "Any other key of the run file is set the same way: --optim.weight-decay 1e-4, "
    "--model.kwargs.dropout 0.1. Dashes and underscores are the same. "
    "The launch flags' defaults are torchrun's PET_* variables."
)


@dataclass(frozen=True, kw_only=True)
class TrainArguments:
    """What the command line of `drivetrain train` asks for. Later overrides win over earlier ones."""

    recipe: str | None
    overrides: tuple[Override, ...]
    print_config: bool
    dry_run: bool
    gpus: int | None = None
    is_bound: bool = True


class TrainCommand(click.Command):
    """Takes any `--key value` besides the declared flags; which keys exist is the loader's to say."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        takes_value: dict[str, bool] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option):
                for name in (*parameter.opts, *parameter.secondary_opts):
                    takes_value[name] = not (parameter.is_flag or parameter.count)
        rest, ctx.meta["overrides"] = split_overrides(args, takes_value)
        return super().parse_args(ctx, rest)


def train_options(function: Any) -> click.Command:
    """Declares `drivetrain train` around `function(arguments: TrainArguments) -> int`."""

    def callback(**values: Any) -> int:
        dotted = click.get_current_context().meta["overrides"]
        code: int = function(arguments_of(values, dotted))
        return code

    return TrainCommand(
        "train",
        callback=callback,
        params=[
            click.Argument(["recipe"], required=False),
            *(_option(flag) for flag in DAILY_FLAGS),
            click.Option(["--compile/--no-compile"], default=None, help="torch.compile the model."),
            *(_option(flag) for flag in LAUNCH_FLAGS),
            click.Option(
                ["-j", "nodes_by_processes"], metavar="NxP", help="N machines, P processes on each."
            ),
            gpus_option(),
            click.Option(
                ["--no-bind"], is_flag=True, help="Leave GPUs' order, CPUs and memory to the ranks."
            ),
            click.Option(["--print-config"], is_flag=True, help="Print the whole run file and stop."),
            click.Option(["--dry-run"], is_flag=True, help="Print what would be launched and stop."),
        ],
        help="Train RECIPE (a run file, or the name of one that comes with drivetrain), or your own --task.",
        epilog=_EPILOG,
    )


def arguments_of(values: Mapping[str, Any], dotted: tuple[Override, ...]) -> TrainArguments:
    """From click's values (by parameter name) and the overrides found beside the flags."""
    overrides = list(dotted)
    for flag in (*DAILY_FLAGS, *LAUNCH_FLAGS):
        value = values[_parameter(flag)]
        if value is True:
            overrides.append(from_command_line(flag.name, None, key=flag.key))
        elif value not in (None, False):
            overrides.append(from_command_line(flag.name, value, key=flag.key))
    if values["compile"] is not None:
        written = "--compile" if values["compile"] else "--no-compile"
        overrides.append(from_command_line(written, str(values["compile"]).lower(), key="compile"))
    if values["nodes_by_processes"] is not None:
        overrides += _nodes_by_processes(values)
    return TrainArguments(
        recipe=values["recipe"],
        overrides=tuple(overrides),
        print_config=values["print_config"],
        dry_run=values["dry_run"],
        gpus=values["gpus"],
        is_bound=not values["no_bind"],
    )


def _option(flag: Flag) -> click.Option:
    if flag.metavar is None:
        return click.Option([flag.name], is_flag=True, help=flag.help)
    return click.Option([flag.name], metavar=flag.metavar, help=flag.help)


def _parameter(flag: Flag) -> str:
    return flag.name.removeprefix("--").replace("-", "_")


def _nodes_by_processes(values: Mapping[str, Any]) -> list[Override]:
    """TorchX's `-j 2x8`: two machines with eight processes each."""
    written = str(values["nodes_by_processes"])
    nodes, processes = split_layout(written)
    for flag in ("nnodes", "nproc_per_node"):
        if values[flag] is not None:
            name = "--" + flag.replace("_", "-")
            raise InputError(
                f"-j {written} with {name} {values[flag]}", "-j sets that too", "give one of them"
            )
    return [
        from_command_line("-j", nodes, key="launch.nnodes"),
        from_command_line("-j", processes, key="launch.nproc_per_node"),
    ]
