"""The writer: what reaches the file and when, full disks, forks, restarts, and what a step's event costs."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from drivetrain.spec.parts import StepPart
from drivetrain.telemetry.events import EvalEvent, Event, Header, MessageEvent, StepEvent
from drivetrain.telemetry.reader import read_events
from drivetrain.telemetry.writer import Clock, EventWriter


def header(rank: int = 0, restart: int = 0) -> Header:
    return Header(
        rank=rank, world_size=2, local_rank=rank, host="h", pid=1, started_wall_s=1.0, restart=restart
    )


def step(number: int) -> StepEvent:
    parts = {StepPart.DATA_WAIT: 0.001, StepPart.FORWARD: 0.002, StepPart.BACKWARD: 0.003}
    return StepEvent(
        step=number,
        position=number * 8,
        num_samples=4,
        loss=0.5,
        lr=0.1,
        grad_norm=1.0,
        parts=parts,
        step_s=0.006,
    )


def kinds(path: Path) -> list[str]:
    return [event.kind for event in read_events(path)]


def wait_until(condition: object, timeout_s: float) -> float:
    start = time.monotonic()
    while not condition():  # type: ignore[operator]
        assert time.monotonic() - start < timeout_s, "waited in vain"
        time.sleep(0.01)
    return time.monotonic() - start


def test_the_header_comes_first_and_every_event_is_stamped(tmp_path: Path) -> None:
    path = tmp_path / "events" / "rank-00001.jsonl"
    clock = Clock(mono_s=lambda: 7.0, wall_s=lambda: 1000.0)
    writer = EventWriter(path, header(rank=1), clock=clock)
    writer.write(step(1))
    writer.close()
    events = list(read_events(path))
    assert [event.kind for event in events] == ["header", "step"]
    assert [(event.rank, event.mono_s, event.wall_s) for event in events] == [(1, 7.0, 1000.0)] * 2


def test_a_steps_event_is_in_the_file_within_half_a_second(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    writer = EventWriter(path, header())
    try:
        writer.write(step(1))
        assert wait_until(lambda: "step" in kinds(path), timeout_s=10.0) < 2.0  # 0.25 s on an idle machine
    finally:
        writer.close()


def test_other_events_are_in_the_file_at_once_and_bring_the_steps_before_them(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    writer = EventWriter(path, header(), flush_interval_s=1000.0)
    try:
        assert kinds(path) == ["header"]
        writer.write(step(1))
        writer.write(MessageEvent(level="info", text="hello"))
        assert kinds(path) == ["header", "step", "message"]
    finally:
        writer.close()


def test_what_was_flushed_survives_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from drivetrain.telemetry.events import *; from drivetrain.telemetry.writer import EventWriter\n"
        "h = Header(rank=0, world_size=1, local_rank=0, host='h', pid=1, started_wall_s=1.0)\n"
        "w = EventWriter(Path(sys.argv[1]), h, flush_interval_s=1000.0)\n"
        "w.write(StepEvent(step=1, position=1, num_samples=1))\n"
        "w.write(MessageEvent(level='info', text='last words'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert kinds(path) == ["header", "step", "message"]


def test_a_process_that_ends_without_close_still_writes_its_last_steps(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    code = (
        "import sys; from pathlib import Path\n"
        "from drivetrain.telemetry.events import *; from drivetrain.telemetry.writer import EventWriter\n"
        "h = Header(rank=0, world_size=1, local_rank=0, host='h', pid=1, started_wall_s=1.0)\n"
        "w = EventWriter(Path(sys.argv[1]), h, flush_interval_s=1000.0)\n"
        "w.write(StepEvent(step=1, position=1, num_samples=1))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=True)
    assert kinds(path) == ["header", "step"]


def test_close_twice_is_close_once_and_later_events_are_counted_as_lost(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "e.jsonl", header())
    writer.close()
    writer.close()
    writer.write(step(1))
    assert writer.num_lost == 1
    assert kinds(tmp_path / "e.jsonl") == ["header"]


def test_a_restart_ends_a_torn_line_and_appends_a_new_header(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    EventWriter(path, header()).close()
    with path.open("a") as file:
        file.write('{"kind":"step","ra')
    writer = EventWriter(path, header(restart=1))
    writer.write(step(1))
    writer.close()
    events = list(read_events(path))
    assert [event.kind for event in events] == ["header", "header", "step"]
    assert isinstance(events[1], Header)
    assert events[1].restart == 1


def test_an_event_that_cannot_be_text_is_lost_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = EventWriter(tmp_path / "e.jsonl", header())
    writer.write(StepEvent(step=1, position=1, num_samples=1, loss=object()))  # type: ignore[arg-type]
    writer.write(step(2))
    writer.close()
    assert writer.num_lost == 1
    assert [event.kind for event in read_events(tmp_path / "e.jsonl")][-1] == "step"
    assert "StepEvent.loss" in caplog.text


def test_a_forked_child_neither_writes_nor_flushes_the_parents_events(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    writer = EventWriter(path, header(), flush_interval_s=1000.0)
    for number in range(1, 4):
        writer.write(step(number))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of any fork beside threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            writer.flush()
            writer.close()
            try:
                writer.write(step(99))
            except RuntimeError:
                code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert kinds(path) == ["header"]
    writer.write(step(4))
    writer.close()
    assert [event.step for event in read_events(path) if isinstance(event, StepEvent)] == [1, 2, 3, 4]


def test_a_child_forked_while_the_writer_holds_its_lock_does_not_hang(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "e.jsonl", header())
    with writer._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            writer.close()
            os._exit(0)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    writer.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_said_once_and_every_event_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        writer = EventWriter(Path("/dev/full"), header())
        for number in range(1, 51):
            writer.write(step(number))
            writer.write(MessageEvent(level="info", text="x"))
        assert len(caplog.records) == 1
        assert "No space left on device" in caplog.text
        writer.close()
    assert writer.num_lost == 100
    assert "100 events are missing" in caplog.records[-1].getMessage()


# A file that may not grow past a limit fails in the middle of a line, as a full disk does, without root.
_LIMITED = """
import resource, signal, sys
from pathlib import Path
from drivetrain.telemetry.events import *
from drivetrain.telemetry.writer import EventWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
h = Header(rank=0, world_size=1, local_rank=0, host="h", pid=1, started_wall_s=1.0)
w = EventWriter(Path(sys.argv[1]), h, flush_interval_s=1000.0)
for i in range(100):
    w.write(StepEvent(step=i + 1, position=i, num_samples=1))
w.write(MessageEvent(level="info", text="full"))
lost = w.num_lost
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
w.write(MessageEvent(level="info", text="space again"))
w.close()
print(lost, w.num_lost)
"""


def test_a_disk_that_fills_up_keeps_whole_lines_and_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(path)], timeout=60, check=True, capture_output=True, text=True
    )
    lost_while_full, lost_in_all = map(int, done.stdout.split())
    for line in path.read_text().splitlines():
        json.loads(line)
    events: list[Event] = list(read_events(path))
    steps = [event.step for event in events if isinstance(event, StepEvent)]
    messages = [event.text for event in events if isinstance(event, MessageEvent)]
    assert steps == list(range(1, len(steps) + 1))
    assert 5 < len(steps) < 50
    assert lost_while_full == lost_in_all == 101 - len(steps)
    assert messages[0].startswith(f"before this: {lost_in_all} events are missing: File too large")
    assert messages[1] == "space again"
    assert done.stderr.count("events are being lost") == 1
    assert f"{lost_in_all} events are missing" in done.stderr


def test_a_folder_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        EventWriter(tmp_path / "file" / "e.jsonl", header())


def test_a_steps_event_costs_the_calling_thread_little(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "e.jsonl", header())
    costs_s = []
    for round_number in range(10):
        start = time.thread_time()
        for number in range(100):
            writer.write(step(round_number * 100 + number))
        costs_s.append((time.thread_time() - start) / 100)
    writer.write(EvalEvent(step=1, epoch=1.0, num_samples=1, metrics={}, seconds=1.0))
    writer.close()
    assert writer.num_lost == 0
    print(f"one step event: best {min(costs_s) * 1e6:.1f} µs, worst {max(costs_s) * 1e6:.1f} µs")
    # 20 µs is the budget; the best of ten rounds, since other processes share the machine.
    assert min(costs_s) < 20e-6
