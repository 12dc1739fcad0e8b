import threading
import time
from collections.abc import Callable
from pathlib import Path

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
