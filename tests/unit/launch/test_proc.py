import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from drivetrain.launch import proc

CODE = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", CODE], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child
        child.kill()


def test_handlers_are_told_from_defaults_and_from_ignoring(process: subprocess.Popen[bytes]) -> None:
    signals = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
    assert [proc.catches(process.pid, signum) for signum in signals] == [True, False, False]
    assert [proc.ignores(process.pid, signum) for signum in signals] == [False, True, False]


def test_a_process_is_exiting_once_it_has_been_killed(process: subprocess.Popen[bytes]) -> None:
    assert not proc.is_exiting(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert proc.is_exiting(process.pid)  # a zombie
    process.wait()
    assert proc.is_exiting(process.pid)  # reaped
    assert not proc.catches(process.pid, signal.SIGUSR1)
