"""The command line in this process, in an empty folder, without the caller's launcher variables."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from drivetrain.cli.main import main
from drivetrain.spec.outcome import Outcome

LAUNCHERS = ("PET_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "MPI_")
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in os.environ:
        if name in RANKS or name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(folder, capsys):
    """Runs `drivetrain ARGS`; gives code, out and err."""

    def cli(*args):
        code = main(args)
        captured = capsys.readouterr()
        return SimpleNamespace(code=code, out=captured.out, err=captured.err)

    return cli


@pytest.fixture
def launched(monkeypatch):
    """Stands in for the ranks and the display: notes what would have been launched, and how it ends."""
    seen = SimpleNamespace(requests=[], exit_code=0, lines=[], worker=[])

    def launch(request, *, screen, note, lock):
        seen.requests.append(request)
        screen("a line of rank 0\n")
        return Outcome(
            exit_code=seen.exit_code,
            world_size=request.nproc_per_node,
            restarts=0,
            started_wall_s=0.0,
            ended_wall_s=1.0,
            command=request.command,
        )

    class ProgressDisplay:
        def __init__(self, run_dir, *_, **__):
            self.run_dir = run_dir

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def line(self, text):
            seen.lines.append(text)

    def run_worker(config, run_dir):
        seen.worker.append((config, run_dir))
        return 7

    for name, members in {
        "drivetrain.launch.torchrun": {"launch": launch},
        "drivetrain.launch.describe": {
            "describe_failure": lambda outcome: outcome.exit_code and "rank 1 failed first"
        },
        "drivetrain.report.progress": {"ProgressDisplay": ProgressDisplay},
        "drivetrain.report.summary": {"summarise": lambda run_dir, outcome: f"summary of {run_dir.path}"},
        "drivetrain.train.worker": {"run_worker": run_worker},
    }.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**members))
    return seen
