import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from drivetrain.launch.lock import hold_folder
from drivetrain.spec.errors import InputError
from drivetrain.spec.job import LaunchRequest


def local(folder: Path) -> LaunchRequest:
    return LaunchRequest(command=("a",), folder=folder)


def static(folder: Path, node_rank: int) -> LaunchRequest:
    return LaunchRequest(
        command=("a",), folder=folder, min_nodes=2, max_nodes=2, node_rank=node_rank, master_addr="n0"
    )


def elastic(folder: Path) -> LaunchRequest:
    return LaunchRequest(command=("a",), folder=folder, min_nodes=1, max_nodes=2, rdzv_endpoint="n0:1")


def is_refused(request: LaunchRequest) -> bool:
    try:
        with hold_folder(request):
            return False
    except InputError:
        return True


def test_a_second_launcher_is_refused_at_once_and_told_by_whom(tmp_path: Path) -> None:
    start = time.monotonic()
    with (
        hold_folder(local(tmp_path / "run")),
        pytest.raises(InputError) as caught,
        hold_folder(local(tmp_path / "run")),
    ):
        pass
    assert time.monotonic() - start < 2.0
    assert f"pid {os.getpid()} on {socket.gethostname()}" in caught.value.found
    assert "--output" in caught.value.do
    with hold_folder(local(tmp_path / "run")):
        pass


def test_machines_of_one_job_do_not_exclude_each_other(tmp_path: Path) -> None:
    with hold_folder(static(tmp_path, 0)), hold_folder(static(tmp_path, 1)):
        assert is_refused(static(tmp_path, 0))
        assert is_refused(static(tmp_path, 1))
        assert is_refused(local(tmp_path))
    with hold_folder(elastic(tmp_path)), hold_folder(elastic(tmp_path)):
        assert is_refused(local(tmp_path))


def test_what_a_killed_launcher_left_behind_is_waited_for(tmp_path: Path) -> None:
    """A process that inherited the descriptor outlives its parent, as the guardian does."""
    code = (
        "import os, subprocess, sys, time; from pathlib import Path\n"
        "from drivetrain.launch.lock import hold_folder; from drivetrain.spec.job import LaunchRequest\n"
        "with hold_folder(LaunchRequest(command=('a',), folder=Path(sys.argv[1]))) as lock:\n"
        "    subprocess.Popen(['sleep', '1'], pass_fds=(lock,), stdout=subprocess.DEVNULL)\n"
        "    os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=20, check=False)
    start = time.monotonic()
    with hold_folder(local(tmp_path)):
        assert 0.3 < time.monotonic() - start < 5.0


def test_a_file_that_a_killed_launcher_left_behind_locks_nothing(tmp_path: Path) -> None:
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch/lock").write_text("elsewhere 12\n")
    with hold_folder(local(tmp_path)):
        text = (tmp_path / "launch/lock").read_text()
    assert text == f"{socket.gethostname()} {os.getpid()}\n"


def test_programs_started_meanwhile_do_not_inherit_it(tmp_path: Path) -> None:
    with hold_folder(local(tmp_path)):
        child = subprocess.Popen(["sleep", "30"], close_fds=False)
    try:
        assert not is_refused(local(tmp_path))
    finally:
        child.kill()
        child.wait()


def test_a_folder_that_cannot_be_made_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"), hold_folder(local(tmp_path / "file" / "run")):
        pass
