import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.launch.screen import ScreenTail


def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_pieces_arrive_as_they_were_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"an earlier launch\n")
    pieces: list[str] = []
    tail = ScreenTail(log, pieces.append, start=log.stat().st_size)
    with log.open("ab", buffering=0) as file:
        file.write(b"one\ntwo\r\n10%\r20%\r")
        wait_until(lambda: len(pieces) >= 3)
        assert pieces[:3] == ["one\n", "two\r\n", "10%\r"]
        file.write(b"30%\nname? ")
        wait_until(lambda: pieces[-1] == "name? ")  # a piece without an end is shown after a moment
        file.write("gr\u00fc".encode()[:3])  # half a character
        time.sleep(0.1)
        file.write("\u00fc".encode()[1:] + b"\xff\n")
        file.write(b"the last words")
    tail.close()
    assert "".join(pieces) == "one\ntwo\r\n10%\r20%\r30%\nname? gr\u00fc\ufffd\nthe last words"


def test_it_ends_promptly_and_shows_everything(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"")
    pieces: list[str] = []
    tail = ScreenTail(log, pieces.append, start=0)
    text = "".join(f"line {index}\n" for index in range(20_000))
    log.write_text(text)
    start = time.monotonic()
    tail.close()
    assert time.monotonic() - start < 1.0
    assert "".join(pieces) == text


def test_a_reader_that_has_gone_does_not_disturb(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\n")
    called = threading.Event()

    def broken(text: str) -> None:
        called.set()
        raise BrokenPipeError

    tail = ScreenTail(log, broken, start=0)
    assert called.wait(5.0)
    tail.close()


@pytest.mark.parametrize("end", ["", "\n", "\r", "\r\nnext\r"])
def test_a_line_of_10_mb_is_shown_in_time(tmp_path: Path, end: str) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"before\n" + b"x" * 10_000_000 + end.encode())
    pieces: list[str] = []
    start = time.monotonic()
    tail = ScreenTail(log, pieces.append, start=0)
    tail.close(20.0)
    assert time.monotonic() - start < 1.5
    assert "".join(pieces) == "before\n" + "x" * 10_000_000 + end
    assert max(map(len, pieces)) < 200_000  # none of it is held back until its end comes


def test_a_carriage_return_at_the_end_of_a_read_is_not_cut_from_its_newline(tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = ("x" * 65_535 + "\r\n") * 3  # "\r" is the last character of the first 64 KiB
    log.write_text(text, newline="")
    pieces: list[str] = []
    ScreenTail(log, pieces.append, start=0).close()
    assert pieces == ["x" * 65_535 + "\r\n"] * 3


def test_after_an_interruption_a_traceback_ends_the_showing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    trace = "Traceback (most recent call last):\n  File …\nKeyError: 1\n"
    log.write_text(trace)
    pieces: list[str] = []
    tail = ScreenTail(log, pieces.append, start=0)
    wait_until(lambda: "".join(pieces) == trace)
    tail.end_at_traceback()
    with log.open("a") as file:
        file.write("saved\n[rank0]: " + trace.replace("KeyError: 1", "KeyboardInterrupt") + "more\n")
    tail.close()
    assert "".join(pieces) == trace + "saved\n"
