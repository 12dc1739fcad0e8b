"""Readers are given whole events only, of finished and of growing files."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import Event, Header, MessageEvent, StepEvent
from drivetrain.telemetry.json_lines import to_line
from drivetrain.telemetry.reader import EventTail, follow, read_events
from drivetrain.telemetry.writer import EventWriter


def header(rank: int) -> Header:
    return Header(rank=rank, world_size=2, local_rank=rank, host="h", pid=1, started_wall_s=1.0)


def message(text: str) -> str:
    return to_line(MessageEvent(level="info", text=text), rank=0, mono_s=1.0, wall_s=1.0)


def texts(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, MessageEvent)]


def test_torn_and_foreign_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(message("a") + "\x00\x00\n\n" + '{"kind":"later"}\n' + message("b") + message("c")[:-10])
    assert texts(list(read_events(path))) == ["a", "b"]


def test_only_the_wanted_kinds_are_read(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    writer = EventWriter(path, header(0))
    writer.write(StepEvent(step=1, position=1, num_samples=1))
    writer.write(MessageEvent(level="info", text="a"))
    writer.close()
    assert [event.kind for event in read_events(path, kinds={Header, MessageEvent})] == ["header", "message"]


def test_of_a_long_file_early_steps_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    writer = EventWriter(path, header(0))
    for number in range(1, 11):
        writer.write(StepEvent(step=number, position=1, num_samples=1))
        writer.write(MessageEvent(level="info", text=str(number)))
        if number == 7:
            size = path.stat().st_size
    writer.close()
    events = list(read_events(path, steps_from_byte=size))
    assert [event.step for event in events if isinstance(event, StepEvent)] == [8, 9, 10]
    assert len(texts(events)) == 10


def test_a_line_that_grows_in_pieces_comes_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    tail = EventTail([path])
    assert tail.poll() == []
    line = message("grown")
    for piece in (line[:5], line[5:20], line[20:-1]):
        with path.open("a") as file:
            file.write(piece)
        assert tail.poll() == []
    with path.open("a") as file:
        file.write("\n" + message("next"))
    assert texts(tail.poll()) == ["grown", "next"]
    assert tail.poll() == []


def test_a_torn_end_that_was_cut_off_again_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(message("a") + '{"kind":"mess')
    tail = EventTail([path])
    assert texts(tail.poll()) == ["a"]
    path.write_text(message("a"))
    tail.poll()
    with path.open("a") as file:
        file.write(message("b"))
    assert texts(tail.poll()) == ["b"]


def test_an_endless_line_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text("x" * (6 << 20) + "\n" + message("after"))
    tail = EventTail([path])
    found: list[Event] = []
    for _ in range(40):
        found += tail.poll()
        assert len(tail._files[path].rest) <= (4 << 20) + (1 << 18)
    assert texts(found) == ["after"]


def test_from_end_leaves_out_the_earlier_start_of_a_resumed_run(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    EventWriter(run_dir.rank_events(0), header(0)).close()
    tail = EventTail(run_dir, from_end=True)
    writer = EventWriter(run_dir.rank_events(0), header(0))
    writer.write(MessageEvent(level="info", text="new"))
    writer.close()
    assert [event.kind for event in tail.poll()] == ["header", "message"]


def test_follow_finds_ranks_that_appear_later_and_ends_with_all_that_was_written(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    stop = threading.Event()
    seen: list[Event] = []
    delays_s: list[float] = []

    def read() -> None:
        for event in follow(run_dir, stop):
            seen.append(event)
            if isinstance(event, MessageEvent):
                delays_s.append(time.monotonic() - event.mono_s)

    reader = threading.Thread(target=read)
    reader.start()
    writers = []
    for rank in range(3):
        time.sleep(0.1)
        writers.append(EventWriter(run_dir.rank_events(rank), header(rank)))
        writers[-1].write(MessageEvent(level="info", text=f"rank {rank}"))
    for number in range(1, 1001):
        for writer in writers:
            writer.write(StepEvent(step=number, position=number, num_samples=1))
    for writer in writers:
        writer.close()
    stop.set()
    reader.join(timeout=30)
    assert not reader.is_alive()
    for rank in range(3):
        steps = [event.step for event in seen if isinstance(event, StepEvent) and event.rank == rank]
        assert steps == list(range(1, 1001))
    assert len(delays_s) == 3
    assert min(delays_s) < 0.5
