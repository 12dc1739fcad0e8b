from pathlib import Path

import pytest

from drivetrain.launch.traceback_text import fatal_python_error, last_lines, last_traceback, read_tail

SIMPLE = """\
Traceback (most recent call last):
  File "a.py", line 3, in <module>
    main()
    ~~~~^^
  File "a.py", line 2, in main
    raise ValueError("no")
ValueError: no
"""
CHAINED = """\
Traceback (most recent call last):
  File "a.py", line 2, in <module>
    {}["x"]
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "a.py", line 4, in <module>
    raise RuntimeError("lookup") from error
RuntimeError: lookup

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 6, in <module>
    1 / 0
ZeroDivisionError: division by zero
"""
DATA_LOADER = """\
Traceback (most recent call last):
  File "a.py", line 9, in <module>
    next(iter(loader))
RuntimeError: Caught OSError in DataLoader worker process 1.
Original Traceback (most recent call last):
  File "worker.py", line 3, in loop
    read()
OSError: image file is truncated
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1, in <module>
  |     raise ExceptionGroup("several", [ValueError("one")])
  | ExceptionGroup: several (1 sub-exception)
  +-+---------------- 1 ----------------
    | ValueError: one
    +------------------------------------
"""


def test_the_last_of_several_unrelated_tracebacks_is_found() -> None:
    found = last_traceback(SIMPLE.replace("no", "handled earlier") + "step 7\n" + SIMPLE)
    assert found is not None
    assert found.message == "ValueError: no"
    assert found.text == SIMPLE.rstrip()


def test_a_chain_is_kept_whole() -> None:
    found = last_traceback("epoch 1\n" + SIMPLE + "retrying\n" + CHAINED)
    assert found is not None
    assert found.message == "ZeroDivisionError: division by zero"
    assert found.text == CHAINED.rstrip()


def test_a_data_loader_workers_own_error_is_the_message() -> None:
    found = last_traceback(DATA_LOADER)
    assert found is not None
    assert found.message == "OSError: image file is truncated"
    assert found.text == DATA_LOADER.rstrip()


def test_an_exception_group_is_kept_whole() -> None:
    found = last_traceback(GROUP + "bye\n")
    assert found is not None
    assert found.message == "ExceptionGroup: several (1 sub-exception)"
    assert found.text == GROUP.rstrip()


def test_torchs_rank_prefix_is_removed() -> None:
    prefixed = "".join(f"[rank3]: {line}\n" for line in SIMPLE.splitlines())
    found = last_traceback(prefixed + "[rank3]:[W1130 ProcessGroup.cpp:1] destroy was not called\n")
    assert found is not None
    assert found.text == SIMPLE.rstrip()


@pytest.mark.parametrize(
    "after",
    [
        "\nunrelated line\n",
        "Exception ignored in: <function f at 0x1>\n",
        "[W1130 19:00:00.1 TCPStore.cpp:125] recvValue failed\n",
    ],
)
def test_what_follows_the_message_is_left_out(after: str) -> None:
    found = last_traceback(SIMPLE + after)
    assert found is not None
    assert found.text == SIMPLE.rstrip()


def test_a_message_of_several_lines_is_kept() -> None:
    text = SIMPLE.rstrip() + "\n\tMissing key: a\n\tMissing key: b\n"
    found = last_traceback(text)
    assert found is not None
    assert found.message == "ValueError: no"
    assert found.text == text.rstrip()


def test_a_traceback_cut_off_by_a_kill_is_still_shown() -> None:
    found = last_traceback("\n".join(SIMPLE.splitlines()[:3]))
    assert found is not None
    assert found.text.endswith("main()")


@pytest.mark.parametrize("text", ["", "all well\n", "Traceback of the day\n"])
def test_no_traceback_is_none(text: str) -> None:
    assert last_traceback(text) is None


def test_the_tail_is_bounded_and_starts_after_earlier_attempts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"old" * 100 + b"\xffnew")
    assert read_tail(log, start=300) == "\ufffdnew"
    assert read_tail(log, max_bytes=3) == "new"
    assert read_tail(tmp_path / "none") == ""


def test_last_lines_show_a_progress_bar_once() -> None:
    assert last_lines("a\n\n10%\r20%\r30%\nusage: x\n", 2) == "30%\nusage: x"


def test_faulthandlers_report_is_found() -> None:
    report = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1:\n  File a.py"
    assert fatal_python_error("line\n" + report) == report
    assert fatal_python_error("line\n") is None
