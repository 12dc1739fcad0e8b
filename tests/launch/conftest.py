"""Real launchers with real ranks. Most scripts import no torch, so that only the launcher pays for it."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drivetrain.spec.outcome import Outcome

LIMIT_S = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    code: int
    out: str
    err: str
    took_s: float


class Launcher:
    """One `drivetrain launch` process and its run directory."""

    def __init__(self, folder: Path, script: Path, flags: tuple[str, ...], args: tuple[str, ...]) -> None:
        self.folder = folder
        self.started_s = time.monotonic()
        environ = {key: value for key, value in os.environ.items() if not key.startswith("PET_")}
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "drivetrain",
                "launch",
                "--output",
                str(folder),
                *flags,
                "--",
                str(script),
                *args,
            ],
            env=environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def send(self, signum: int) -> None:
        self.process.send_signal(signum)

    def end(self, limit_s: float = LIMIT_S) -> Ended:
        out, err = self.process.communicate(timeout=limit_s)
        took_s = time.monotonic() - self.started_s
        return Ended(code=self.process.returncode, out=out.decode(), err=err.decode(), took_s=took_s)

    def log(self, rank: int) -> str:
        return (self.folder / "logs" / f"rank-{rank:05d}.log").read_text(errors="replace")

    def outcome(self, name: str = "outcome.json") -> Outcome:
        return Outcome.from_json((self.folder / "launch" / name).read_text())

    def wait_for(self, rank: int, text: str) -> str:
        """Waits until rank's log holds `text`; returns the log."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                log = self.log(rank)
            except FileNotFoundError:
                log = ""
            if text in log:
                return log
            assert self.process.poll() is None, f"the launcher ended early:\n{self.end()}"
            assert time.monotonic() < deadline, f"{text!r} did not come; the log says {log!r}"
            time.sleep(0.05)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    """Starts a launcher: `start(code, *flags, args=…)`; whatever is left of it is killed in the end."""
    launchers: list[Launcher] = []

    def start_one(
        code: str, *flags: str, args: tuple[str, ...] = (), name: str = "script.py", folder: str = "run"
    ) -> Launcher:
        script = tmp_path / name
        script.write_text(code)
        launchers.append(Launcher(tmp_path / folder, script, flags, args))
        return launchers[-1]

    yield start_one
    for launcher in launchers:
        if launcher.process.poll() is None:
            launcher.send(signal.SIGKILL)
        if launcher.process.stdout is not None and not launcher.process.stdout.closed:
            launcher.process.communicate(timeout=LIMIT_S)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def wait_until_gone() -> Callable[[list[int]], None]:
    def wait(pids: list[int], limit_s: float = 5.0) -> None:
        deadline = time.monotonic() + limit_s
        while alive := [pid for pid in pids if is_alive(pid)]:
            assert time.monotonic() < deadline, f"still alive: {alive}"
            time.sleep(0.05)

    return wait
