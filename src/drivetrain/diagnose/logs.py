"""Which files to read: the ones named, standard input, or those of a run's folder."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from drivetrain.diagnose.collect import collect
from drivetrain.diagnose.judge import judge
from drivetrain.diagnose.rule_files import load_rules
from drivetrain.diagnose.rules import RuleBook
from drivetrain.diagnose.scan import Source
from drivetrain.diagnose.verdict import Verdict
from drivetrain.spec.errors import InputError
from drivetrain.spec.outcome import Outcome, RankOutcome
from drivetrain.spec.run_dir import RunDir

_RANK_LOG = re.compile(r"rank-(\d+)\.log")


def diagnose_logs(paths: Sequence[Path], book: RuleBook | None = None) -> Verdict:
    """Why the job of these logs failed. `-` is standard input; a folder is a run directory, or one of logs.

    Raises:
        InputError: a path is not there, cannot be read, or a folder holds no log.
    """
    sources = [source for path in paths for source in _sources(path)]
    verdict = judge(collect(sources, book or load_rules()))
    if len(verdict.unread) == len(sources):
        raise InputError("diagnose", "; ".join(verdict.unread), "check the path and its permissions")
    return verdict


def diagnose_run(run_dir: Path) -> Verdict:
    """Why the run of this directory failed: from the logs of its ranks, and how its launcher saw them end."""
    return diagnose_logs([run_dir])


def diagnose_text(text: str | bytes, book: RuleBook | None = None) -> Verdict:
    """The same for a log in memory."""
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    return judge(collect([Source(name="-", open=lambda: io.BytesIO(raw))], book or load_rules()))


def _sources(path: Path) -> list[Source]:
    if str(path) == "-":
        return [Source(name="-", open=_standard_input)]
    if path.is_dir():
        return _folder_sources(path)
    if not path.exists():
        raise InputError(
            f"log {path}", "there is no such file", "name a log, a run directory, or - for stdin"
        )
    return [_file(path)]


def _folder_sources(path: Path) -> list[Source]:
    run = RunDir(path)
    folder = run.logs if run.logs.is_dir() else path
    # Only a run's own logs are named by rank for sure; anybody else's file names are no evidence.
    logs = sorted(
        item
        for item in folder.iterdir()
        if item.is_file() and item.suffix in (".log", ".txt", ".out", ".err")
    )
    sources = [_file(log, rank=_rank_of(log) if folder == run.logs else None) for log in logs]
    outcomes = sorted(run.launch.glob("outcome*.json")) if run.launch.is_dir() else []
    sources += [source for outcome in outcomes for source in _outcome_sources(outcome)]
    if not sources:
        raise InputError(
            f"folder {path}", "it holds no logs (*.log, *.txt, *.out, *.err)", "name the log files themselves"
        )
    return sources


def _rank_of(log: Path) -> int | None:
    match = _RANK_LOG.fullmatch(log.name)
    return int(match[1]) if match else None


def _file(path: Path, *, rank: int | None = None) -> Source:
    return Source(name=str(path), open=lambda: path.open("rb"), rank=rank)


def _standard_input() -> BinaryIO:
    return sys.stdin.buffer


def _outcome_sources(path: Path) -> list[Source]:
    """How the launcher saw each rank end, as lines; one source a rank. Damaged outcomes say nothing."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        outcome = Outcome.from_json(text)
    except (OSError, ValueError, KeyError, TypeError):
        return []
    first = outcome.earliest_failure
    ends = [rank for rank in outcome.ranks if rank.failed]
    ends.sort(key=lambda rank: (first is None or rank.rank != first.rank, rank.ended_wall_s or 0.0))
    return [_ending(path, text, rank) for rank in ends]


def _ending(path: Path, text: str, rank: RankOutcome) -> Source:
    said = f"rank {rank.rank} on {rank.host}: "
    if rank.signal is not None:
        said += (
            "ended by the launcher"
            if (rank.message or "").startswith("ended by the launcher")
            else f'"signal": {rank.signal}'
        )
    else:
        said += rank.message or f"exit code {rank.exit_code}"
    # The line of outcome.json where this rank stands, so that the evidence can be looked up.
    before = text.split(f'"rank": {json.dumps(rank.rank)},')[0].count("\n")
    raw = "\n" * before + said.replace("\n", " ") + "\n"
    return Source(name=str(path), open=lambda: io.BytesIO(raw.encode(errors="replace")), rank=rank.rank)
