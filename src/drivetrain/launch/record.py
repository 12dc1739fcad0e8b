"""What a launch leaves in `<run>/launch/`: the command at the start, the outcome at the end."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from drivetrain.launch.check import Rendezvous, rendezvous_of
from drivetrain.launch.render import render_command
from drivetrain.spec.errors import InputError
from drivetrain.spec.job import LaunchRequest
from drivetrain.spec.outcome import Outcome
from drivetrain.spec.restart import Restart
from drivetrain.spec.run_dir import RunDir


@dataclass(frozen=True, kw_only=True)
class LaunchRecord:
    """The files of one launcher. Machines may share the folder, so all but node 0 have names of their own."""

    run: RunDir
    suffix: str

    @property
    def command(self) -> Path:
        return self.run.launch / f"command{self.suffix}.txt"

    @property
    def errors(self) -> Path:
        """Where ranks write their exceptions (TORCHELASTIC_ERROR_FILE)."""
        return self.run.launch / "errors"

    def outcome(self, node_rank: int | None) -> Path:
        """`node_rank` as the rendezvous numbered this machine; None where it never did."""
        if node_rank == 0 or (node_rank is None and self.suffix == ""):
            return self.run.outcome
        name = f"-node-{node_rank:05d}" if node_rank is not None else self.suffix
        return self.run.outcome.with_name(f"outcome{name}.json")

    def add_restart(self, restart: Restart) -> None:
        """Where it cannot be written (a full disk), training goes on all the same."""
        with contextlib.suppress(OSError), self.run.restarts.open("a", encoding="utf-8") as file:
            file.write(restart.to_line() + "\n")

    def write_outcome(self, outcome: Outcome, node_rank: int | None) -> Path:
        """Atomic: a reader sees the whole outcome or none."""
        path = self.outcome(node_rank)
        _write_atomically(path, outcome.to_json() + "\n")
        return path


def open_record(request: LaunchRequest) -> LaunchRecord:
    """Makes the folders, removes the outcome of an earlier launch into them, and writes `command.txt`.

    Raises:
        InputError: the folder cannot be written.
    """
    record = LaunchRecord(run=RunDir(request.folder), suffix=_suffix(request))
    try:
        record.run.logs.mkdir(parents=True, exist_ok=True)
        record.errors.mkdir(parents=True, exist_ok=True)
        # Else a launcher that is killed would leave an old ending beside a new beginning.
        record.outcome(request.node_rank).unlink(missing_ok=True)
        if record.suffix == "":
            record.run.restarts.unlink(missing_ok=True)
        _write_atomically(record.command, render_command(request, hide_secrets=True))
    except OSError as error:
        raise InputError(
            f"output folder {request.folder}",
            f"cannot be written on {socket.gethostname()}: {error.strerror}",
            "choose another with --output",
        ) from error
    return record


def _suffix(request: LaunchRequest) -> str:
    kind = rendezvous_of(request)
    if kind is Rendezvous.LOCAL or request.node_rank == 0:
        return ""
    if kind is Rendezvous.STATIC:
        return f"-node-{request.node_rank:05d}"
    # The rendezvous will number this machine; until then its host and process tell it apart.
    return f"-{re.sub(r'[^A-Za-z0-9.-]', '_', socket.gethostname())}-{os.getpid()}"


def _write_atomically(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
