"""One launcher on one machine: success, failures, restarts, signals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]

NICE = r"""
import os, sys, time
out = sys.stdout.buffer
if os.environ["RANK"] == "0":
    out.write(b"10%\r20%\r\n\xff bytes\nno end of line"); out.flush()
    time.sleep(0.6)
    out.write(b", now\n"); out.flush()
for i in range(100):
    (sys.stdout, sys.stderr)[i % 2].write(f"{os.environ['RANK']}:{i}\n")
print(repr(sys.argv[1:]), os.environ["GREETING"], os.environ["MASTER_PORT"], os.environ["WORLD_SIZE"])
"""


def test_a_job_that_ends_well(start: Start) -> None:
    hostile = ("it's", 'a "b"', "$(touch x)", "two\nlines", "")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ("--nproc_per_node=2", "--env", "GREETING=it's $(me)", "--master-port", str(port))
    launcher = start(NICE, *flags, args=hostile, name='my "model" $(x)\'s\n.py')
    ended = launcher.end()
    assert (ended.code, ended.err.count("\n")) == (0, 1), ended.err  # only where the run directory is
    for rank in range(2):
        log = launcher.log(rank)
        assert [line for line in log.splitlines() if line.startswith(f"{rank}:")] == [
            f"{rank}:{index}" for index in range(100)
        ]
        assert f"{list(hostile)!r} it's $(me) {port} 2" in log
    shown = "10%\r20%\r\n\ufffd bytes\nno end of line, now\n0:0\n0:1\n"
    assert ended.out.startswith(shown.replace("\r\n", "\n")) or ended.out.startswith(shown)
    assert "1:0" not in ended.out
    outcome = launcher.outcome()
    assert (outcome.exit_code, outcome.world_size, outcome.restarts) == (0, 2, 0)
    assert [(item.rank, item.exit_code, item.signal) for item in outcome.ranks] == [
        (0, 0, None),
        (1, 0, None),
    ]
    assert outcome.command[0] == sys.executable
    command = (launcher.folder / "launch/command.txt").read_text()
    assert f"MASTER_PORT={port}" in command
    assert "RANK=1" in command


FAILING = """
import os, signal, subprocess, sys, time
if os.environ["RANK"] == "1":
    time.sleep(0.5)
    print("on stdout"); print("on stderr", file=sys.stderr); print("on stdout again")
    try:
        {}["lr"]
    except KeyError as error:
        raise RuntimeError("no learning rate") from error
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
os.write(1, f"pids {os.getpid()} {child.pid}\\n".encode())  # a whole line: a test reads it as it comes
time.sleep(300)
"""


def test_one_rank_fails_while_the_other_would_go_on(start: Start, wait_until_gone: Any) -> None:
    launcher = start(FAILING, "--nproc-per-node", "2")
    pids = [int(word) for word in launcher.wait_for(0, "pids").split()[1:3]]
    ended = launcher.end()
    assert ended.code == 1
    wait_until_gone(pids)
    assert launcher.log(1).startswith("on stdout\non stderr\non stdout again\nTraceback")
    text = ended.err[ended.err.index("Traceback") :]
    assert "KeyError: 'lr'" in text
    assert "RuntimeError: no learning rate\n\nrank 1 of 2 failed first: exit code 1\n" in text
    for part in (socket.gethostname(), "local rank 1", "rank-00001.log"):
        assert part in text
    assert "on stderr" not in ended.out
    outcome = launcher.outcome()
    first = outcome.earliest_failure
    assert first is not None
    assert (outcome.exit_code, first.rank, first.exit_code, first.signal) == (1, 1, 1, None)
    assert first.message == "RuntimeError: no learning rate"
    assert (first.traceback or "").count("Traceback (most recent call last)") == 2
    assert (outcome.ranks[0].pid, outcome.ranks[0].signal) == (pids[0], signal.SIGKILL)
    assert first.ended_wall_s is not None
    assert outcome.ranks[0].ended_wall_s is not None
    # By the ranks' own times: on a busy machine the launcher itself may still be importing torch.
    assert 0.0 < outcome.ranks[0].ended_wall_s - first.ended_wall_s < 10.0


def test_a_usage_error_is_2_and_told_without_a_traceback(start: Start) -> None:
    code = """
import os, sys, time
if os.environ["RANK"] == "0":
    time.sleep(300)
from drivetrain.spec.errors import InputError
raised = InputError("data.path /x", "no such folder", "give --data.path")
import json
message = {"message": f"InputError: {raised}", "extraInfo": {"py_callstack": "Traceback…", "timestamp": "1"}}
open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write(json.dumps({"message": message}))
sys.exit(2)
"""
    launcher = start(code, "--nproc-per-node", "2")
    ended = launcher.end()
    assert ended.code == 2
    assert ended.err.endswith("\ndata.path /x: no such folder\n  → give --data.path\n")
    assert "Traceback" not in ended.err


RESTARTING = """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"attempt {attempt}: {int(total)} ranks")
if attempt == "0":
    if dist.get_rank() == 1:
        raise ValueError("only the first time")
    dist.barrier()
dist.destroy_process_group()
"""


def test_a_restart_makes_it_succeed(start: Start) -> None:
    launcher = start(RESTARTING, "--nproc-per-node", "2", "--max-restarts", "1")
    ended = launcher.end(100.0)
    assert ended.code == 0, ended.err
    for rank in range(2):
        log = launcher.log(rank)
        first, separator, second = log.partition("attempt 2 of 2")
        assert separator
        assert "attempt 0: 2 ranks" in first
        assert "attempt 1: 2 ranks" in second
    assert "ValueError: only the first time" in launcher.log(1)
    assert "attempt 1: 2 ranks" in ended.out
    outcome = launcher.outcome()
    assert (outcome.exit_code, outcome.restarts, outcome.earliest_failure) == (0, 1, None)


SAVING = """
import os, signal, sys, time
def save(signum, frame):
    time.sleep(0.5)
    print("saved at", signum)
    sys.exit(0)
signal.signal(signal.SIGINT, save)
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGUSR1, lambda *_: print("noted"))
print("ready")
while True:
    time.sleep(0.1)
"""


def test_an_interrupt_is_forwarded_and_the_ranks_may_save(start: Start) -> None:
    launcher = start(SAVING, "--nproc-per-node", "2")
    for rank in range(2):
        launcher.wait_for(rank, "ready")
    for _ in range(2):
        launcher.send(signal.SIGUSR1)
        launcher.wait_for(0, "noted")
    launcher.send(signal.SIGINT)
    ended = launcher.end(20.0)
    assert ended.code == 130
    for rank in range(2):
        assert "saved at 2" in launcher.log(rank)
    assert "saved at 2" in ended.out
    assert ended.err.split("\n")[1:] == [
        "SIGUSR1 was not passed on: rank 1 has no handler for it, and would have died of it",
        "interrupted by SIGINT; the ranks have ended",
        "",
    ]
    outcome = launcher.outcome()
    assert (outcome.exit_code, outcome.earliest_failure) == (130, None)
    assert [item.exit_code for item in outcome.ranks] == [0, 0]


def test_an_interruption_at_the_start_shows_no_traceback_nor_waits_for_a_long_line(start: Start) -> None:
    code = "import time\nprint('x' * 10_000_000, end='', flush=True)\nprint(' ready')\ntime.sleep(300)"
    launcher = start(code, "--nproc-per-node", "2")
    launcher.wait_for(0, "ready")
    launcher.send(signal.SIGINT)
    ended = launcher.end(20.0)
    assert ended.code == 130
    assert ended.err.split("\n")[1:] == ["interrupted by SIGINT; the ranks have ended", ""]
    assert ended.out == "x" * 10_000_000 + " ready\n"
    assert "KeyboardInterrupt" in launcher.log(0)
    assert launcher.outcome().error == "interrupted by SIGINT; the ranks have ended"


STUBBORN = """
import os, signal, time
for signum in (signal.SIGTERM, signal.SIGINT):
    signal.signal(signum, signal.SIG_IGN)
pid = os.fork()
os.write(1, f"pid {os.getpid()}\\n".encode())  # whole lines: a test reads them as they come
time.sleep(300)
"""


def test_a_second_interrupt_kills_at_once(start: Start, wait_until_gone: Any) -> None:
    launcher = start(STUBBORN, "--nproc-per-node", "2")
    pids = []
    for rank in range(2):
        launcher.wait_for(rank, "pid")
        deadline = time.monotonic() + 10
        while launcher.log(rank).count("pid") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        pids += [int(line.split()[1]) for line in launcher.log(rank).splitlines()]
    launcher.send(signal.SIGTERM)
    time.sleep(0.3)
    launcher.send(signal.SIGINT)
    sent = time.monotonic()
    ended = launcher.end(20.0)
    assert ended.code == 143
    assert time.monotonic() - sent < 4.0  # less than the grace
    wait_until_gone(pids)
    assert [item.signal for item in launcher.outcome().ranks] == [9, 9]


ALIVE = """
from pathlib import Path
paths = [Path(f"/proc/{pid}/stat") for pid in PIDS]
print("left", [path for path in paths if path.exists() and path.read_text().split()[2] != "Z"])
"""


def test_ranks_do_not_outlive_a_killed_launcher_nor_does_its_lock(start: Start, wait_until_gone: Any) -> None:
    launcher = start(STUBBORN, "--nproc-per-node", "2")
    pids = []
    for rank in range(2):
        deadline = time.monotonic() + 10
        while launcher.wait_for(rank, "pid").count("pid") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        pids += [int(line.split()[1]) for line in launcher.log(rank).splitlines()]
    command = (launcher.folder / "launch/command.txt").read_text()
    refused = start("print('never')", "--nproc-per-node", "1", name="other.py").end()
    assert refused.code == 2
    assert f"another launcher is at work there: pid {launcher.process.pid} on {socket.gethostname()}" in (
        refused.err
    )
    assert (launcher.folder / "launch/command.txt").read_text() == command
    launcher.send(signal.SIGKILL)
    # One that comes while the ranks are being ended waits for them.
    after = start(ALIVE.replace("PIDS", str(pids)), "--nproc-per-node", "1", name="after.py")
    wait_until_gone(pids)
    launcher.end()
    ended = after.end()
    assert ended.code == 0, ended.err
    assert "left []" in ended.out


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no right to mount a small file system: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], timeout=10, check=True)


def test_on_a_full_disk_it_still_says_why_the_ranks_failed(start: Start, small_disk: Path) -> None:
    code = "import os, time\ntime.sleep(0.5)\nprint('x' * 500_000)\ntime.sleep(300)"
    launcher = start(code, "--nproc-per-node", "1", folder="small/run")
    ended = launcher.end()
    assert ended.code == 1
    assert "rank 0 of 1 failed first: exit code 1" in ended.err
    assert "outcome.json could not be written: No space left on device" in ended.err
    assert "Traceback" not in ended.err
    again = start("print('never')", "--nproc-per-node", "1", name="again.py", folder="small/run").end()
    assert again.code == 2
    assert "cannot be written" in again.err
    assert "No space left on device" in again.err
    assert "Traceback" not in again.err


def test_a_taken_port_is_refused_before_anything_starts(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        launcher = start("print('never')", "--nproc-per-node", "2", "--master-port", str(port))
        ended = launcher.end()
    assert ended.code == 2
    assert f"master port {port}: already taken" in ended.err
    assert f"pid {os.getpid()}" in ended.err
    assert "→ choose another --master-port" in ended.err
    assert not launcher.folder.exists()


def test_a_program_that_is_not_there_is_refused(start: Start) -> None:
    launcher = start("", "-j1x2", "--no-python", name="not executable")
    ended = launcher.end()
    assert ended.code == 2
    assert "it cannot be run: Permission denied" in ended.err
    assert launcher.outcome().exit_code == 2
