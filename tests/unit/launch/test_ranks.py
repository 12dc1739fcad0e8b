import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.launch.ranks import RankProcesses, RankStart, StoppedError
from drivetrain.spec.errors import InputError


@pytest.fixture
def ranks() -> Iterator[RankProcesses]:
    processes = RankProcesses(grace_s=0.5)
    yield processes
    processes.close()


def make_start(folder: Path, rank: int, code: str) -> RankStart:
    return RankStart(
        rank=rank,
        local_rank=rank,
        command=(sys.executable, "-I", "-S", "-u", "-c", code),
        environment={**os.environ, "RANK": str(rank)},
        log=folder / f"{rank}.log",
        error_file=folder / f"{rank}.json",
    )


def start(ranks: RankProcesses, folder: Path, *codes: str, attempt: int = 0) -> None:
    starts = [make_start(folder, rank, code) for rank, code in enumerate(codes)]
    ranks.start(starts, attempt=attempt, attempts=2)


def wait_for_text(path: Path, text: str) -> str:
    deadline = time.monotonic() + 10.0
    while text not in (found := path.read_text()):
        assert time.monotonic() < deadline, f"{text!r} did not come: {found!r}"
        time.sleep(0.02)
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ends_and_output_are_kept_in_order(ranks: RankProcesses, tmp_path: Path) -> None:
    code = "import sys\nfor i in range(200): (sys.stdout, sys.stderr)[i % 2].write(f'{i}\\n')"
    start(ranks, tmp_path, code, "pass")
    assert ranks.wait(10.0)
    assert [end.returncode for end in ranks.ends()] == [0, 0]
    assert (tmp_path / "0.log").read_text().split() == [str(index) for index in range(200)]
    assert not ranks.any_failed


def test_one_failure_ends_the_others_and_their_children(ranks: RankProcesses, tmp_path: Path) -> None:
    stubborn = (
        "import os, signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '100'])\n"
        "print('child', child.pid)\n"
        "time.sleep(100)"
    )
    start(ranks, tmp_path, stubborn, "import time; time.sleep(1.0); raise SystemExit(3)")
    child = int(wait_for_text(tmp_path / "0.log", "\n").split()[1])
    assert ranks.wait(10.0)
    first, second = ranks.ends()
    assert (first.returncode, second.returncode) == (-signal.SIGKILL, 3)
    assert first.ended_wall_s is not None
    assert second.ended_wall_s is not None
    assert 0.4 < first.ended_wall_s - second.ended_wall_s < 3.0  # the grace
    deadline = time.monotonic() + 5.0
    while is_alive(child):  # killed, but on a busy machine not gone at once
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_sigterm_reaches_the_rank_but_not_its_children(ranks: RankProcesses, tmp_path: Path) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '0.3'])\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0 if child.wait() == 0 else 1))\n"
        "print('ready')\n"
        "time.sleep(100)"
    )
    start(ranks, tmp_path, code)
    wait_for_text(tmp_path / "0.log", "ready")
    ranks.stop()
    assert ranks.ends()[0].returncode == 0


def test_an_interruption_is_forwarded_and_forbids_further_starts(
    ranks: RankProcesses, tmp_path: Path
) -> None:
    code = "import signal,sys,time\nsignal.signal(2, lambda *_: sys.exit(9))\nprint('ready')\ntime.sleep(100)"
    start(ranks, tmp_path, code)
    wait_for_text(tmp_path / "0.log", "ready")
    ranks.interrupt(signal.SIGINT)
    assert ranks.wait(10.0)
    assert ranks.ends()[0].returncode == 9
    with pytest.raises(StoppedError):
        start(ranks, tmp_path, "pass")


def test_a_signal_is_forwarded_to_those_who_handle_it(ranks: RankProcesses, tmp_path: Path) -> None:
    code = "import signal, time\nsignal.signal(10, {})\nprint('ready')\nwhile True: time.sleep(0.05)"
    handlers = ("lambda *_: print('noted')", "signal.SIG_DFL", "signal.SIG_IGN")
    start(ranks, tmp_path, *(code.format(handler) for handler in handlers))
    for rank in range(3):
        wait_for_text(tmp_path / f"{rank}.log", "ready")
    assert ranks.forward(signal.SIGUSR1) == (1,)
    wait_for_text(tmp_path / "0.log", "noted")
    assert not ranks.wait(0.2)
    assert [end.returncode for end in ranks.ends()] == [None, None, None]


def test_a_sigkill_of_ours_is_told_from_one_from_elsewhere(ranks: RankProcesses, tmp_path: Path) -> None:
    code = "import os, signal, time\nsignal.signal(15, {})\nprint('ready')\nwhile True: time.sleep(0.05)"
    handlers = ("lambda *_: os.kill(os.getpid(), 9)", "signal.SIG_IGN")
    start(ranks, tmp_path, *(code.format(handler) for handler in handlers))
    for rank in range(2):
        wait_for_text(tmp_path / f"{rank}.log", "ready")
    ranks.stop()
    ends = ranks.ends()
    assert [end.returncode for end in ends] == [-signal.SIGKILL, -signal.SIGKILL]
    assert [end.is_killed for end in ends] == [False, True]
    assert all(end.stopped_wall_s is not None for end in ends)


def test_a_new_attempt_keeps_the_log_and_says_where_it_begins(ranks: RankProcesses, tmp_path: Path) -> None:
    start(ranks, tmp_path, "print('first'); raise SystemExit(1)")
    assert ranks.wait(10.0)
    start(ranks, tmp_path, "print('second')", attempt=1)
    assert ranks.wait(10.0)
    text = (tmp_path / "0.log").read_text()
    assert text.index("first") < text.index("attempt 2 of 2") < text.index("second")
    end = ranks.ends()[0]
    assert (end.returncode, text[end.log_start :]) == (0, "second\n")


def test_what_a_successful_rank_leaves_running_is_left_alone(ranks: RankProcesses, tmp_path: Path) -> None:
    start(ranks, tmp_path, "import subprocess; print(subprocess.Popen(['sleep', '30']).pid)")
    assert ranks.wait(10.0)
    ranks.stop()
    ranks.close()
    pid = int((tmp_path / "0.log").read_text())
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_a_program_that_is_not_there_is_the_users_mistake(ranks: RankProcesses, tmp_path: Path) -> None:
    good = make_start(tmp_path, 0, "import time; time.sleep(100)")
    bad = RankStart(
        rank=1,
        local_rank=1,
        command=("/no/such/program",),
        environment={},
        log=tmp_path / "1.log",
        error_file=tmp_path / "1.json",
    )
    with pytest.raises(InputError, match="cannot be run"):
        ranks.start([good, bad], attempt=0, attempts=1)
    assert ranks.wait(5.0)
    assert ranks.ends()[0].returncode == -signal.SIGKILL
