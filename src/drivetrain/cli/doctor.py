"""`drivetrain doctor`: is this machine (or the one that a paste tells of) right, and how is it repaired."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from drivetrain.cli.streams import say
from drivetrain.spec.errors import InputError
from drivetrain.spec.exit_codes import ExitCode

if TYPE_CHECKING:
    from drivetrain.doctor.facts import NodeFacts
    from drivetrain.doctor.finding import Finding


@click.command(
    name="doctor",
    short_help="Check this machine before a run.",
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
)
@click.option(
    "--from",
    "pasted",
    multiple=True,
    metavar="FILE...",
    help="Read what was pasted, not this machine; - is stdin.",
)
@click.option(
    "--against", type=click.Path(path_type=Path), metavar="RUN", help="Also say what changed since a run."
)
@click.option("--quick", is_flag=True, help="Leave out storage, framework imports and the functional test.")
@click.option(
    "--data",
    "data_folder",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="FOLDER",
    help="Where to measure storage. [the current folder]",
)
@click.option("--json", "as_json", is_flag=True, help="Facts and findings as JSON.")
@click.option("--report", "as_report", is_flag=True, help="A block for a bug report, without names.")
@click.option(
    "--names", "with_names", is_flag=True, help="Leave host names, users and addresses in --report."
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Also show what passed and what was not checked, and why."
)
@click.argument("more_files", nargs=-1, metavar="")
def command(
    pasted: tuple[str, ...],
    against: Path | None,
    quick: bool,
    data_folder: Path,
    as_json: bool,
    as_report: bool,
    with_names: bool,
    verbose: bool,
    more_files: tuple[str, ...],
) -> int:
    """Check driver, CUDA, torch, GPUs, network, limits and packages; say what is wrong and how to repair it.

    \b
    drivetrain doctor                      this machine, with a functional test
    drivetrain doctor --from smi.txt ib.txt
                                           nvidia-smi, -q, ibstat, collect_env, NCCL lines of another machine
    drivetrain doctor --against runs/x     also what changed since that run

    Ends with 3 if a check fails, else with 0.
    """
    if more_files and not pasted:
        raise InputError(
            f"doctor {more_files[0]}",
            "doctor takes files only after --from",
            f"doctor --from {more_files[0]}",
        )
    if pasted and against is not None:
        raise InputError(
            "--against with --from", "a run is compared with this machine", "leave one of them out"
        )
    nodes, findings = _look((*pasted, *more_files), against, data_folder, is_quick=quick)
    click.echo(
        _shown(nodes, findings, as_json=as_json, as_report=as_report, with_names=with_names, verbose=verbose)
    )
    return ExitCode.DOCTOR if any(finding.status == "fail" for finding in findings) else ExitCode.DONE


def _look(
    files: tuple[str, ...], against: Path | None, data_folder: Path, *, is_quick: bool
) -> tuple[tuple[NodeFacts, ...], tuple[Finding, ...]]:
    from drivetrain.doctor.checks.table import run_checks

    if files:
        from drivetrain.doctor.pasted.assemble import read_pasted

        nodes = read_pasted([Path("/dev/stdin") if name == "-" else Path(name) for name in files])
        return nodes, run_checks(nodes)
    from drivetrain.doctor.against import compare, read_run
    from drivetrain.doctor.live import read_this_node

    if not data_folder.is_dir():
        raise InputError(f"--data {data_folder}", "there is no such folder", "name the folder of the data")
    record = read_run(against) if against is not None else None
    if not is_quick:
        say("drivetrain: looking at this machine, and trying it out; --quick leaves the trials out")
    facts = read_this_node(os.environ, data_folder=data_folder, is_quick=is_quick)
    findings = run_checks([facts])
    return (facts,), findings + (compare(record, facts) if record is not None else ())


def _shown(
    nodes: tuple[NodeFacts, ...],
    findings: tuple[Finding, ...],
    *,
    as_json: bool,
    as_report: bool,
    with_names: bool,
    verbose: bool,
) -> str:
    if as_json:
        from drivetrain.doctor.facts_json import facts_to_json

        checks = [finding.to_json() for finding in findings]
        return json.dumps({"facts": facts_to_json(nodes), "checks": checks}, indent=2)
    if as_report:
        from drivetrain.doctor.bug_report import bug_report

        return bug_report(nodes, findings, os.environ, with_names=with_names)
    from drivetrain.doctor.render import render

    head = [f"{facts.node}: read {', '.join(facts.read)}" for facts in nodes if not facts.is_live]
    return "\n".join([*head, *([""] if head else []), render(findings, is_verbose=verbose)])
