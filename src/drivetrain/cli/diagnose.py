"""`drivetrain diagnose`: why a job failed, from its logs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from drivetrain.cli.streams import show
from drivetrain.spec.errors import InputError


@click.command(
    name="diagnose", context_settings={"token_normalize_func": lambda name: name.replace("_", "-")}
)
@click.argument("logs", nargs=-1, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@click.option(
    "--rules",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Rules of your own (YAML).",
)
@click.option("--explain", metavar="CAUSE", help="Print the page of a cause: symptoms, proof, fix.")
@click.option("--causes", "list_causes", is_flag=True, help="List all causes.")
def command(
    logs: tuple[Path, ...], as_json: bool, rules: tuple[Path, ...], explain: str | None, list_causes: bool
) -> int | None:
    """Say why a job failed, from LOGS: files of any launcher, a run directory, or - for standard input.

    \b
    drivetrain diagnose runs/2026-11-30-digits
    drivetrain diagnose slurm-1203941.out dmesg.txt
    kubectl logs --prefix -l job=train | drivetrain diagnose -

    The exit code is 0 whenever the logs could be read, whatever they tell, and 2 when none could.
    """
    from drivetrain.diagnose.rule_files import load_rules

    book = load_rules(rules)
    if list_causes:
        show("\n".join(f"{cause.id:36} {cause.title}" for cause in book.causes.values()), what="the causes")
        return None
    if explain is not None:
        from drivetrain.diagnose.show import cause_page

        if explain not in book.causes:
            raise InputError(f"--explain {explain}", "there is no such cause", "drivetrain diagnose --causes")
        show(cause_page(book, explain).rstrip(), what="the page")
        return None
    if not logs:
        raise InputError("diagnose", "no log is named", "name log files, a run directory, or - for stdin")
    from drivetrain.diagnose.logs import diagnose_logs
    from drivetrain.diagnose.show import verdict_text

    verdict = diagnose_logs(logs, book)
    show(json.dumps(verdict.to_json(), indent=2) if as_json else verdict_text(verdict), what="the verdict")
    return None
