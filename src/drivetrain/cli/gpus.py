"""`drivetrain gpus`: who uses which GPU of this machine, and leases, so that nobody takes another's."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from drivetrain.cli.streams import say
from drivetrain.config.launch_words import duration_s
from drivetrain.spec.errors import InputError

_CONTEXT = {"help_option_names": ["-h", "--help"]}


@click.group(name="gpus", context_settings=_CONTEXT)
def command() -> None:
    """See who uses the GPUs of this machine, and lease some of them for a command."""


@command.command(name="list", context_settings=_CONTEXT)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def list_gpus(as_json: bool) -> None:
    """Every GPU: memory, utilisation, temperature, processes with their jobs, lease."""
    from drivetrain.hardware.leases.folder import lease_folder
    from drivetrain.hardware.leases.look import look
    from drivetrain.hardware.nvml import NvmlError, open_nvml
    from drivetrain.hardware.processes import process_facts
    from drivetrain.report.gpus import GpuRow, table, to_json
    from drivetrain.spec.unknown import Unknown

    folder = lease_folder(os.environ)
    try:
        with open_nvml() as nvml:
            all_facts = nvml.all_facts()
    except NvmlError as error:
        if not error.means_no_driver:
            raise _nvml_failed("the list of GPUs", error.reason) from error
        say(error.reason)
        all_facts = ()
    rows = [
        GpuRow(
            facts=facts,
            lease=look(folder, facts.uuid),
            processes=()
            if isinstance(facts.processes, Unknown)
            else tuple(process_facts(item.pid) for item in facts.processes),
        )
        for facts in all_facts
    ]
    click.echo(json.dumps(to_json(rows)) if as_json else table(rows))


@command.command(
    name="lease",
    context_settings={**_CONTEXT, "allow_interspersed_args": False},
    short_help="Run a command on GPUs that nobody else has.",
)
@click.option("-n", "num_gpus", type=int, default=1, show_default=True, metavar="N", help="GPUs.")
@click.option("--wait", "is_waiting", is_flag=True, help="Wait in line until they are free.")
@click.option("--for", "for_text", metavar="TIME", help="How long: 90m, 4h, 1d12h. What is over is said.")
@click.option("--end", "is_ending", is_flag=True, help="End the command when the time is over.")
@click.option("--grace", default="30s", show_default=True, metavar="TIME", help="Of --end, before SIGKILL.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND")
def lease(
    num_gpus: int, is_waiting: bool, for_text: str | None, is_ending: bool, grace: str, words: tuple[str, ...]
) -> int:
    """Run COMMAND on GPUs that nobody else uses, and keep the others' leases off them while it runs.

    COMMAND sees its GPUs alone (CUDA_VISIBLE_DEVICES, by UUID). They are chosen from the user's own
    CUDA_VISIBLE_DEVICES where that is set. The lease ends with the command and what it has left running.
    Its locks lie in /run/lock or /tmp; containers that share GPUs share a folder by DRIVETRAIN_LEASES.

    \b
    drivetrain gpus lease -n 2 -- python train.py
    drivetrain gpus lease -n 4 --wait --for 8h --end -- bash job.sh
    """
    from drivetrain.hardware.leases.request import lease_gpus
    from drivetrain.launch.leased import Expiry, run_leased

    expiry = None
    if for_text is not None:
        for_s = duration_s(for_text)
        expiry = Expiry(for_s=for_s, is_ending=is_ending, grace_s=duration_s(grace))
    elif is_ending:
        raise InputError("--end", "when is not said", "give --for, as in --for 4h")
    held = lease_gpus(
        num_gpus,
        environ=os.environ,
        command=words,
        for_s=expiry.for_s if expiry else None,
        is_waiting=is_waiting,
        note=_note,
    )
    _note(f"leased {held.describe()}")
    return run_leased(held, words, expiry=expiry, note=_note)


def _note(text: str) -> None:
    say(f"gpus: {text}")


def _nvml_failed(asked: str, reason: str) -> Any:
    from drivetrain.hardware.leases.error import LeaseError

    return LeaseError(asked, reason, "see what nvidia-smi says")
