"""Whose a process is, what it runs and for which job, as far as /proc tells this user."""

from __future__ import annotations

import pwd
import re
from dataclasses import dataclass
from pathlib import Path

from drivetrain.spec.run_dir import RUN_DIR_VARIABLE
from drivetrain.spec.unknown import Unknown

# Where Slurm, Kubernetes and Docker say in a cgroup's path whose it is; the file is everybody's to read.
_BY_CGROUP = (
    (re.compile(r"/job_(\d+)(?:/|$)"), "Slurm job {}"),
    (re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f_-]{27})"), "pod {}"),
    (re.compile(r"(?:docker|libpod|cri-containerd|crio)[-/]([0-9a-f]{12})[0-9a-f]{52}"), "container {}"),
)


@dataclass(frozen=True, kw_only=True)
class ProcessFacts:
    """`job` is a run's folder, a Slurm job, a pod or a container; None where there is none of these."""

    pid: int
    user: str | Unknown
    command: str | Unknown
    job: str | Unknown | None


def process_facts(pid: int, proc: Path = Path("/proc")) -> ProcessFacts:
    """Every fact is Unknown where the process is gone, hidden (hidepid) or in another pid namespace."""
    folder = proc / str(pid)
    try:
        uid = folder.stat().st_uid
    except OSError:
        gone = Unknown("not to be seen here: it has ended, is hidden, or runs in another container")
        return ProcessFacts(pid=pid, user=gone, command=gone, job=gone)
    return ProcessFacts(pid=pid, user=user_name(uid), command=_command(folder), job=_job(folder))


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # in a container, or from a directory service that is down
        return f"uid {uid}"


def plain(text: str) -> str:
    """`text` on one line, without characters that would move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def _command(folder: Path) -> str | Unknown:
    try:
        words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        name = (folder / "comm").read_text(errors="replace").strip()
    except OSError as error:
        return Unknown(error.strerror or str(error))
    line = plain(b" ".join(words).decode(errors="replace"))
    return line or plain(name)  # a zombie has no command line any more


def _job(folder: Path) -> str | Unknown | None:
    by_cgroup = _job_by_cgroup(folder)
    try:
        pairs = (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return by_cgroup or Unknown("its environment is not this user's to read")
    environ = dict(pair.decode(errors="replace").partition("=")[::2] for pair in pairs)
    if run := environ.get(RUN_DIR_VARIABLE):
        return f"run {plain(run)}"
    if slurm := environ.get("SLURM_JOB_ID"):
        return f"Slurm job {plain(slurm)}"
    return by_cgroup


def _job_by_cgroup(folder: Path) -> str | None:
    try:
        text = (folder / "cgroup").read_text(errors="replace")
    except OSError:
        return None
    for pattern, wording in _BY_CGROUP:
        if match := pattern.search(text):
            return wording.format(match.group(1))
    return None
