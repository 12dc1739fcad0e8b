"""Ranks that are killed, machines that come and go: the samples are those of an undisturbed run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Train = Callable[..., Any]


def test_a_killed_rank_is_replaced_and_nothing_is_lost(
    train: Train, tmp_path: Path, undisturbed: list[dict[str, Any]]
) -> None:
    training = train("--nproc-per-node", "2", "--max-restarts", "1")
    training.wait_for(lambda: forkserver_of(training.process.pid))
    training.wait_for_start(0, 2)
    os.kill(training.headers(1)[-1]["pid"], signal.SIGKILL)
    training.wait_for_start(1, 2)
    (tmp_path / "slow").unlink()
    code, said = training.end()
    assert code == 0, said
    (restart,) = training.restarts()
    assert (restart["why"], restart["rank"], restart["signal"]) == ("failed", 1, signal.SIGKILL)
    assert restart["is_forked"]
    assert restart["attempt"] == 1
    assert "restarted after rank 1 was killed by SIGKILL" in said
    # To the last bit: ranks that were forked compute as those that were started.
    assert training.certificate() == undisturbed


def forkserver_of(launcher: int) -> int | None:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == launcher and b"drivetrain.launch.forkserver" in words:
            return int(folder.name)
    return None


@pytest.fixture
def store() -> Iterator[int]:
    """The port of a store that no machine of the job hosts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-m", "drivetrain", "launch", "--host-store", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert b"a store for --rdzv-endpoint" in process.stderr.readline()
    yield port
    process.terminate()
    assert process.wait(30) == 0
    process.stderr.close()


@pytest.mark.slow  # a minute and more: make faults runs it
def test_machines_come_and_go(
    train: Train, tmp_path: Path, store: int, undisturbed: list[dict[str, Any]]
) -> None:
    flags = ("--nnodes", "1:2", "--nproc-per-node", "1", "--rdzv-id", "job", "--local-addr", "127.0.0.1")
    flags += ("--rdzv-endpoint", f"127.0.0.1:{store}")
    first = train(*flags)
    first.wait_for_start(0, 1)
    second = train(*flags)
    first.wait_for_start(1, 2)
    second.process.send_signal(signal.SIGTERM)
    code, said = second.end()
    assert code == 75, said
    first.wait_for_start(2, 1)
    third = train(*flags)
    first.wait_for_start(3, 2)
    first.process.kill()  # with its ranks, which the guardian ends
    third.wait_for_start(4, 1)
    (tmp_path / "slow").unlink()
    code, said = third.end()
    assert code == 0, said
    restarts = third.restarts()
    assert [item["why"] for item in restarts] == ["joined", "left", "joined", "lost"]
    assert [item["world_size"] for item in restarts] == [2, 1, 2, 1]
    starts = [event for event in third.events() if event["kind"] == "run_started"]
    steps_before = [last_step_before(third.events(), start["wall_s"]) for start in starts[1:]]
    for start, before, why in zip(starts[1:], steps_before, restarts, strict=True):
        lost = before - start["start_step"]
        assert lost == 0 if why["why"] in ("joined", "left") else 0 <= lost <= 10
    for own, other in zip(third.certificate(), undisturbed, strict=True):
        assert (own["step"], own["samples"]) == (other["step"], other["samples"])
        assert own["loss"] == pytest.approx(other["loss"], rel=1e-3, abs=1e-6)


def last_step_before(events: list[dict[str, Any]], wall_s: float) -> int:
    return int([e for e in events if e["kind"] == "step" and e["wall_s"] < wall_s][-1]["step"])
