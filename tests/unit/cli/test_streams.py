"""Whole processes, as the interpreter's own shutdown is part of what is tested."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os
import sys
from pathlib import Path
from drivetrain.cli import main, streams
def run(args):
    links = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
    Path(sys.argv[1]).write_text(" ".join(links))
    streams.show("the result", what="the summary")
    return 7
main._run = run
sys.exit(main.main())
"""


def run(tmp_path: Path, redirections: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    return subprocess.run(
        ["bash", "-c", f'"$0" "$1/program.py" "$1/links" {redirections}', sys.executable, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_result_is_printed(tmp_path: Path) -> None:
    done = run(tmp_path, "")
    assert (done.returncode, done.stdout, done.stderr) == (7, "the result\n", "")


def test_a_full_stdout_is_told_on_stderr_and_keeps_the_exit_code(tmp_path: Path) -> None:
    done = run(tmp_path, ">/dev/full")
    assert done.returncode == 7
    assert done.stderr == "the summary could not be printed: [Errno 28] No space left on device\n"


def test_a_reader_that_has_gone_keeps_the_exit_code(tmp_path: Path) -> None:
    done = run(tmp_path, "| exec true; exit ${PIPESTATUS[0]}")
    assert done.returncode == 7
    assert done.stderr in ("", "the summary could not be printed: [Errno 32] Broken pipe\n")


def test_nothing_can_be_written_at_all(tmp_path: Path) -> None:
    done = run(tmp_path, ">/dev/full 2>&1")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_closed_streams_are_opened_on_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "<&- >&- 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
    assert (tmp_path / "links").read_text() == "/dev/null /dev/null /dev/null"
