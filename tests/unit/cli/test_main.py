"""The entry point: quick, light, and clear about what it does not know."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from drivetrain._version import __version__
from drivetrain.cli.main import VERBS, main
from drivetrain.spec.errors import InputError

HEAVY = ("torch", "pydantic", "yaml", "rich", "numpy")


def python(code, **options):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **options)


def test_help_answers_within_three_tenths_of_a_second():
    times_s = []
    for _ in range(5):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "drivetrain", "--help"], capture_output=True, timeout=60)
        times_s.append(time.perf_counter() - start)
        assert done.returncode == 0
        assert b"train" in done.stdout
    # The quickest: the others measure what else the machine was doing.
    assert min(times_s) <= 0.3, times_s


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["--version"], ["train", "--help"], ["trian"]])
def test_help_imports_nothing_heavy(args):
    code = (
        "import sys\nfrom drivetrain.cli.main import main\n"
        f"main({args!r})\n"
        f"print('heavy:', sorted(name for name in {HEAVY!r} if name in sys.modules))"
    )
    assert python(code).stdout.splitlines()[-1] == "heavy: []"


def test_every_verb_is_listed_with_a_line(cli):
    shown = cli("--help")
    assert shown.code == 0
    for verb in VERBS:
        assert f"\n  {verb} " in shown.out


def test_the_version_is_the_packages(cli):
    assert cli("--version").out == f"drivetrain {__version__}\n"


def test_an_unknown_verb_is_answered_with_the_nearest(cli):
    shown = cli("trian")
    assert shown.code == 2
    assert "did you mean `drivetrain train`?" in shown.err
    assert "the verbs are train" in cli("zzzzzzzz").err


def test_a_users_mistake_ends_on_stderr_with_code_2_and_no_traceback(cli, monkeypatch):
    def fail(*args, **options):
        raise InputError("what was asked", "what was found", "what to do")

    monkeypatch.setattr("drivetrain.cli.main.group.main", fail)
    shown = cli("train")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == "drivetrain: what was asked: what was found\n  → what to do\n"


def test_a_folder_that_is_gone_is_said_instead_of_a_traceback(cli, folder):
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    assert cli("--help").code == 0
    for args in (["train", "digits"], ["launch", "--dry-run", "no_such.py"]):
        shown = cli(*args)
        assert (shown.code, shown.out) == (2, "")
        assert "the current folder: it no longer exists\n  → " in shown.err


@pytest.mark.parametrize(
    "error",
    [MemoryError(), ImportError("libtorch_cpu.so: failed to map segment from shared object")],
)
def test_a_limit_of_the_shell_on_memory_is_named(cli, monkeypatch, error):
    def fail(*args, **options):
        raise error

    monkeypatch.setattr("drivetrain.cli.main.group.main", fail)
    with pytest.raises(type(error)):  # without a limit it is no fault of the shell
        main(["train"])
    monkeypatch.setattr("resource.getrlimit", lambda which: (2**30, 2**30))
    shown = cli("train")
    assert shown.code == 2
    assert "limits a process to 1,024 MiB" in shown.err
    assert "ulimit -v unlimited" in shown.err


def test_other_errors_of_the_system_keep_their_traceback(cli, monkeypatch):
    def fail(*args, **options):
        raise FileNotFoundError(2, "no such file", "x")

    monkeypatch.setattr("drivetrain.cli.main.group.main", fail)
    with pytest.raises(FileNotFoundError):
        main(["train"])


def test_an_interrupt_has_the_shells_code(monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("drivetrain.cli.main.group.main", interrupt)
    assert main(["train"]) == 130


def test_the_module_runs_as_the_command_does():
    done = subprocess.run(
        [sys.executable, "-m", "drivetrain", "train"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "drivetrain train digits" in done.stderr
    assert "Traceback" not in done.stderr
