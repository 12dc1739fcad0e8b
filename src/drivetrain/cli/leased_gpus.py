"""`--gpus N` of train and launch: a lease for as long as the ranks run, which they inherit."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from drivetrain.cli.streams import say

OPTION_HELP = "Lease N GPUs that nobody uses, for this run (drivetrain gpus)."


def gpus_option() -> click.Option:
    return click.Option(["--gpus"], type=int, metavar="N", help=OPTION_HELP)


@contextmanager
def leased_gpus(num_gpus: int | None, *, is_dry: bool = False) -> Iterator[dict[str, str]]:
    """Variables for the ranks: those of the lease while the block runs, none without `--gpus`.

    A dry run leases too, for its moment, so that it prints what would run now; its variables name the GPUs
    alone.

    Raises:
        InputError, LeaseError: as `lease_gpus`.
    """
    if num_gpus is None:
        yield {}
        return
    from drivetrain.hardware.leases.request import lease_gpus

    words = ("drivetrain", *sys.argv[1:])
    lease = lease_gpus(
        num_gpus,
        environ=os.environ,
        command=words,
        how_to_wait=f"drivetrain gpus lease -n {num_gpus} --wait -- {shlex.join(_without_gpus(words))}",
    )
    try:
        say(f"leased {lease.describe()}")
        variables = lease.environment()
        yield {"CUDA_VISIBLE_DEVICES": variables["CUDA_VISIBLE_DEVICES"]} if is_dry else variables
    finally:
        lease.close()


def _without_gpus(words: tuple[str, ...]) -> list[str]:
    """The same command for within a lease: up to a script's own arguments, without `--gpus N`."""
    end = words.index("--") if "--" in words else len(words)
    kept: list[str] = []
    for at, word in enumerate(words[:end]):
        is_value = at > 0 and words[at - 1] == "--gpus"
        if word != "--gpus" and not word.startswith("--gpus=") and not is_value:
            kept.append(word)
    return [*kept, *words[end:]]
