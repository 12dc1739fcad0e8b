"""Where a run is written: chosen, checked and created last, so that a refused run leaves nothing behind."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from drivetrain.spec.errors import InputError
from drivetrain.spec.rank_env import RankEnv
from drivetrain.spec.run_dir import RunDir

_RUNS = Path("runs")
# What several started ranks have in common, by launcher. torchrun's "none" is its default, not a name.
_JOB_VARIABLES = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")


def fresh_folder(name: str) -> Path:
    """`runs/<name>-<date>-<time>`; a number is added where one of that second exists."""
    stamp = datetime.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    first = _RUNS / f"{name}-{stamp}"
    candidates = (first, *(first.with_name(f"{first.name}-{number}") for number in range(2, 1000)))
    return next(path for path in candidates if not path.exists())


def shared_folder(name: str, environ: Mapping[str, str], rank_env: RankEnv) -> Path:
    """The same folder for each rank of a job that another launcher started, without asking each other.

    Raises:
        InputError: nothing that all ranks know tells this job from the last one.
    """
    for variable in _JOB_VARIABLES:
        job = re.sub(r"[^\w.-]+", "-", environ.get(variable, ""))
        if job not in ("", "none"):
            return _RUNS / f"{name}-{job}"
    started = _parent_started()
    if rank_env.world_size == rank_env.local_world_size and started is not None:
        # One machine: all ranks are children of one launcher, which started once.
        return _RUNS / f"{name}-{started}"
    raise InputError(
        f"a run started by {rank_env.launcher} on several machines",
        "no job number in the environment that all ranks share",
        "say where the run goes: --output FOLDER",
    )


def _parent_started() -> str | None:
    """When this process's parent was started, in clock ticks since boot, with its id; None without /proc."""
    parent = os.getppid()
    try:
        # The second field is the command in brackets and may hold spaces; the start time is field 22.
        fields = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return f"{parent}-{fields[19]}"


def check_folder(run_dir: RunDir, *, resume: str) -> None:
    """Refuses a folder that cannot be written, or that holds another run's results. Creates nothing.

    Raises:
        InputError: why the run cannot be written there.
    """
    path = run_dir.path
    if path.exists() and not path.is_dir():
        raise InputError(f"output {path}", "it is a file", "name a folder: --output FOLDER")
    if resume == "none" and run_dir.is_used:
        raise InputError(
            f"output {path}",
            "a run has already written there",
            "choose another --output, or go on with that run: --resume auto",
        )
    if resume not in ("none", "auto") and not Path(resume).exists():
        raise InputError(
            f"resume {resume}", "there is no such checkpoint", "check the path, or --resume auto"
        )
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise InputError(f"output {path}", f"{existing} is a file", "name a folder: --output FOLDER")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise _not_writable(path, f"{existing} is not writable")


def create_folder(run_dir: RunDir) -> tuple[Path, ...]:
    """Creates the run's folder; returns the folders that were not there before, deepest first.

    Raises:
        InputError: the file system refuses (read-only, no space, no permission).
    """
    path = run_dir.path
    missing = tuple(folder for folder in (path, *path.parents) if not folder.exists())
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(path, f"it cannot be created: {error.strerror}") from error
    return missing


def remove_created(created: tuple[Path, ...]) -> None:
    """Takes back what `create_folder` made, for a run that never started. Keeps what others put beside it."""
    if not created:
        return
    shutil.rmtree(created[0], ignore_errors=True)
    for folder in created[1:]:
        with contextlib.suppress(OSError):  # another run has been written there in the meantime
            folder.rmdir()


def _not_writable(path: Path, found: str) -> InputError:
    return InputError(f"output {path}", found, "choose a writable --output FOLDER")
