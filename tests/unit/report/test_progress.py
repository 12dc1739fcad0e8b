"""A simulated run, written by one thread a rank and followed while it goes on."""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from simulated_run import Simulation, open_writer

from drivetrain.report.panel import panel
from drivetrain.report.plain import PlainScreen
from drivetrain.report.progress import ProgressDisplay
from drivetrain.report.state import RunState
from drivetrain.report.summary import summarise
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import (
    CheckpointEvent,
    EvalEvent,
    Event,
    MessageEvent,
    RunEnded,
    StepEvent,
)


class Terminal(io.TextIOWrapper):
    """A stream that calls itself a terminal and keeps what was written."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.kept = io.BytesIO()
        super().__init__(self.kept, encoding=encoding, write_through=True)

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        return self.kept.getvalue().decode(self.encoding)


def without_escapes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def last_panel(text: str, corner: str = "╭") -> str:
    shown = without_escapes(text)
    return shown[shown.rindex(corner) :]


def test_plain_lines_tell_where_what_and_how_it_went(tmp_path: Path) -> None:
    stream = io.StringIO()
    with ProgressDisplay(RunDir(tmp_path), stream=stream) as display:
        display.line("a line of rank 0")
        Simulation(run_dir=RunDir(tmp_path), pause_s=0.01).write()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "a line of rank 0"
    assert lines[1] == "digits: 40 steps of 7 samples (4 × 70), ddp, fp32"
    assert "  ranks 0–1 of 2 on node7: cpu" in lines
    assert "  micro-batch 4 × 1 accumulated → 3 or 4 per rank × 2 ranks = global batch 7" in lines
    assert "  loader: 1 worker a rank: 2 CPUs, 2 ranks" in lines
    assert "  precision auto → fp32: no GPU" in lines
    assert "eval after step 40: accuracy 90.00 %, loss 0.3 (best accuracy 92.00 % at step 20)" in lines
    assert "saved step 40 (120.6 KiB)" in lines
    last = lines[-1]
    assert last.startswith("step 40/40 · epoch 4.00 · loss 0.0")
    assert "700 img/s (by rank 400 300) · data wait 10 %" in last
    assert last.endswith("done after 0:12")


def test_plain_lines_are_never_more_than_one_a_second_in_a_short_run(tmp_path: Path) -> None:
    stream = io.StringIO()
    start_s = time.monotonic()
    with ProgressDisplay(RunDir(tmp_path), stream=stream, force_plain=True):
        Simulation(run_dir=RunDir(tmp_path), total_steps=60, pause_s=0.03, eval_every=2).write()
    elapsed_s = time.monotonic() - start_s
    status = [line for line in stream.getvalue().splitlines() if line.startswith("step ")]
    # The last state is drawn whenever it comes.
    assert 1 <= len(status) <= elapsed_s + 2
    evaluations = [line for line in stream.getvalue().splitlines() if line.startswith("eval ")]
    assert 1 <= len(evaluations) <= elapsed_s + 2


def test_plain_lines_come_every_two_seconds_at_first_and_every_minute_later() -> None:
    stream = io.StringIO()
    screen = PlainScreen(stream, "run")
    state = RunState()
    simulation = Simulation(run_dir=RunDir(Path("run")), total_steps=100_000, eval_every=10**9)
    events = stamped(simulation)
    told_at_s = []
    for now_s in range(10_000):
        for _ in range(2):
            state.apply(next(events))
        before = len(stream.getvalue())
        screen.update(state, now_s=float(now_s), stalled_s=0.0)
        if len(stream.getvalue()) > before:
            told_at_s.append(now_s)
    gaps = [later - earlier for earlier, later in itertools.pairwise(told_at_s)]
    assert gaps[:5] == [2, 2, 2, 2, 2]
    assert gaps[-5:] == [60, 60, 60, 60, 60]
    assert gaps == sorted(gaps)


def test_a_run_that_stands_still_is_said_and_less_and_less_often() -> None:
    stream = io.StringIO()
    screen = PlainScreen(stream, "run")
    state = RunState()
    events = stamped(Simulation(run_dir=RunDir(Path("run"))))
    for _ in range(8):
        state.apply(next(events))
    for second in range(1000):
        screen.update(state, now_s=float(second), stalled_s=float(second))
    told = [line for line in stream.getvalue().splitlines() if line.startswith("no step for")]
    assert told[0] == "no step for 1:00; the last was step 3"
    assert len(told) == 5


def feed(screen: PlainScreen, state: RunState, events: list[Event], now_s: float, **more: Any) -> None:
    for event in events:
        state.apply(dataclasses.replace(event, rank=max(event.rank, 0)))
    screen.update(state, now_s=now_s, stalled_s=0.0, **more)


def test_every_line_has_one_step_and_no_step_is_told_twice() -> None:
    stream = io.StringIO()
    screen, state = PlainScreen(stream, "run"), RunState()
    source = Simulation(run_dir=RunDir(Path("run")), world_size=1, total_steps=30)
    steps = [event for event in source.rank_events(0) if isinstance(event, StepEvent)]
    evaluation = EvalEvent(step=30, epoch=3.0, num_samples=9, metrics={"accuracy": 0.5}, seconds=1.0)
    saved = CheckpointEvent(step=30, path="x", seconds=0.1, bytes=2048)
    feed(screen, state, [source.header(0), source.started()], 0.0)
    feed(screen, state, [*steps[:28], evaluation], 10.0)  # the last two steps' own events are on their way
    feed(screen, state, steps[28:], 20.0)
    feed(screen, state, [saved], 30.0)
    feed(screen, state, [RunEnded(status="done", step=30, seconds=31.0)], 40.0)
    feed(screen, state, [], 41.0, is_last=True)
    told = stream.getvalue().splitlines()
    told = told[told.index("  writes to run") + 1 :]
    assert told[0] == "eval after step 30: accuracy 50.00 %"
    assert told[1].startswith("step 30/30 · epoch 3.00 · loss 0.0")
    assert told[2:] == ["saved step 30 (2.0 KiB)", "done after 0:31 at step 30/30"]


def test_a_run_with_nothing_left_to_do_says_so_in_lines_and_in_the_panel() -> None:
    stream = io.StringIO()
    screen, state = PlainScreen(stream, "run"), RunState()
    source = Simulation(run_dir=RunDir(Path("run")), world_size=1, total_steps=8, start_step=12)
    feed(screen, state, [source.header(0), source.started()], 0.0)
    feed(screen, state, [RunEnded(status="done", step=12, seconds=1.0)], 1.0, is_last=True)
    last = stream.getvalue().splitlines()[-1]
    assert last == "nothing was left to do: 8 steps asked for, 12 done before"
    assert "12/8" not in stream.getvalue()
    assert last in shown_panel(state)


def shown_panel(state: RunState, *, width: int = 150, **more: Any) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(panel(state, width=width, encoding="utf-8", **{"stalled_s": 0.0, **more}))
    text = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO from above
    return str(text)


def test_before_the_first_step_both_displays_say_what_is_waited_for() -> None:
    stream = io.StringIO()
    screen, state = PlainScreen(stream, "run"), RunState(expected_ranks=2)
    source = Simulation(run_dir=RunDir(Path("run")))
    screen.update(state, now_s=0.0, stalled_s=0.0)
    assert stream.getvalue() == "", "a start of a few seconds needs no words"
    expected = "waiting for the ranks to start (0 of 2 have; importing torch takes some seconds)"
    screen.update(state, now_s=6.0, stalled_s=6.0)
    screen.update(state, now_s=7.0, stalled_s=7.0)
    assert expected in shown_panel(state, stalled_s=7.0)
    state.apply(source.header(0))
    screen.update(state, now_s=8.0, stalled_s=8.0)
    assert "1 of 2 ranks have started; waiting for the rest: 1" in shown_panel(state)
    state.apply(source.header(1))
    screen.update(state, now_s=9.0, stalled_s=9.0)
    assert "2 of 2 ranks started; next come the model" in shown_panel(state)
    everyone = "2 of 2 ranks started; next come the model, the data and a checkpoint to resume from"
    everyone += ", if there is one"
    assert stream.getvalue().splitlines() == [
        f"{expected}; 6.0 s so far",
        "1 of 2 ranks have started; waiting for the rest: 1; 8.0 s so far",
        f"{everyone}; 9.0 s so far",
    ]
    assert "(none has yet; importing torch" in shown_panel(RunState())


def test_a_rank_that_was_stopped_is_named_while_no_step_comes() -> None:
    stream = io.StringIO()
    screen, state = PlainScreen(stream, "run"), RunState()
    source = Simulation(run_dir=RunDir(Path("run")))
    for rank, last in ((0, 58), (1, 57)):
        state.apply(source.header(rank))
        for event in source.rank_events(rank, 58):
            if not isinstance(event, StepEvent) or event.step <= last:
                state.apply(dataclasses.replace(event, rank=rank, wall_s=float(rank)))
    screen.update(state, now_s=0.0, stalled_s=60.0)
    text = "no step for 1:00; the last was step 58; heard of least recently: rank 1 (step 57)"
    assert text in stream.getvalue().splitlines()
    assert text in shown_panel(state, stalled_s=60.0)
    narrow = re.sub(r"\W*│\W*", " ", shown_panel(state, width=50, stalled_s=60.0))
    assert "heard of least recently: rank 1 (step 57" in narrow, "never cut off"
    assert "no step for" not in shown_panel(state, stalled_s=60.0, is_last=True), "it has ended"


def test_the_first_step_is_not_called_a_stall() -> None:
    state = RunState()
    source = Simulation(run_dir=RunDir(Path("run")), world_size=1)
    for event in (source.header(0), source.started()):
        state.apply(dataclasses.replace(event, rank=0))
    shown = shown_panel(state, stalled_s=42.0)
    assert "the first step has been under way for 0:42" in shown
    assert "no step" not in shown


@pytest.mark.parametrize(("step_s", "text"), [(5.28, "step 5.28 s: "), (0.0521, "step 52.1 ms: ")])
def test_a_step_is_told_in_the_unit_that_fits(step_s: float, text: str) -> None:
    state = RunState()
    source = Simulation(run_dir=RunDir(Path("run")), world_size=1, step_s=step_s)
    for event in (source.header(0), *source.rank_events(0)):
        state.apply(dataclasses.replace(event, rank=0))
    assert text in shown_panel(state)


def stamped(simulation: Simulation) -> Any:
    """The header and events of rank 0 as a reader gives them."""
    yield simulation.header(0)
    for event in simulation.rank_events(0):
        yield dataclasses.replace(event, rank=0, mono_s=0.0, wall_s=0.0)


def test_messages_show_with_their_level(tmp_path: Path) -> None:
    stream = io.StringIO()
    simulation = Simulation(run_dir=RunDir(tmp_path), world_size=1)
    with (
        ProgressDisplay(RunDir(tmp_path), stream=stream, force_plain=True),
        open_writer(simulation, 0) as writer,
    ):
        writer.write(simulation.started())
        writer.write(MessageEvent(level="warning", text="metrics sink wandb failed"))
        writer.write(MessageEvent(level="info", text="compiled in 3.1 s"))
    assert "\nwarning: metrics sink wandb failed\ncompiled in 3.1 s\n" in stream.getvalue()


def test_a_resumed_run_shows_of_its_earlier_start_only_the_best(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    Simulation(run_dir=run_dir, total_steps=40).write(until=20, status=None)
    stream = io.StringIO()
    with ProgressDisplay(run_dir, stream=stream, force_plain=True):
        Simulation(run_dir=run_dir, total_steps=40, start_step=20, restart=1).write()
    text = stream.getvalue()
    assert "resumed after step 20" in text
    assert text.count("digits: 40 steps") == 1
    assert "eval after step 20" not in text, "that was told by the earlier start"
    best = "accuracy 90.00 %, loss 0.3 (best accuracy 92.00 % at step 20)"
    assert f"eval after step 40: {best}" in text
    assert best in summarise(run_dir, None, width=200), "the display and the summary agree"
    assert text.splitlines()[-1].startswith("step 40/40")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_panel_fits_the_terminal_and_ends_with_the_last_state(
    tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    terminal = Terminal()
    simulation = Simulation(run_dir=RunDir(tmp_path), pause_s=0.02, bad={5: "bad.jpg"})
    with ProgressDisplay(RunDir(tmp_path), stream=terminal, force_plain=False) as display:
        display.line("\x1b[31mred\x1b[0m words of rank 0")
        simulation.write()
    shown = last_panel(terminal.text)
    assert all(len(line) <= width for line in shown.splitlines())
    assert "step 40/40" in shown
    assert "loss 0.0" in shown
    assert "img/s 700 total" in shown
    assert "red words of rank 0" in without_escapes(terminal.text)
    assert "digits: 40 steps of 7 samples (4 × 70), ddp, fp32" in without_escapes(terminal.text)
    assert terminal.text.rstrip().endswith("\x1b[?25h"), "the cursor is given back"
    if width == 200:
        assert "eval after step 40: accuracy 90.00 %, loss 0.3 (best accuracy 92.00 % at step 20)" in shown
        assert "by rank 0: 400 · 1: 300" in shown
        assert "data wait 10 % · by rank 0: 10 % · 1: 10 %" in shown
        assert "B backward 54 %  F forward 36 %  D data wait 10 %" in shown
        assert re.search(r"│ D+F+B+ │", shown), "the parts differ without colours"
        assert "= global batch 7" in shown
        assert "saved step 40 (120.6 KiB) · 1 bad sample skipped" in shown
        assert "done after 0:12" in shown


def test_the_panel_moves_while_the_run_does(tmp_path: Path) -> None:
    terminal = Terminal()
    with ProgressDisplay(RunDir(tmp_path), stream=terminal, force_plain=False):
        Simulation(run_dir=RunDir(tmp_path), total_steps=60, pause_s=0.02).write()
    steps = [int(number) for number in re.findall(r"step (\d+)/60", without_escapes(terminal.text))]
    assert steps == sorted(steps)
    assert len(set(steps)) >= 3
    assert "ETA" in terminal.text


def test_a_terminal_without_utf8_gets_ascii(tmp_path: Path) -> None:
    terminal = Terminal(encoding="ascii")
    with ProgressDisplay(RunDir(tmp_path), stream=terminal, force_plain=False) as display:
        display.line("smörgås → done")
        Simulation(run_dir=RunDir(tmp_path), pause_s=0.01).write()
    assert "sm?rg?s -> done" in terminal.text
    shown = last_panel(terminal.text, corner="+- digits")
    assert "micro-batch 4 x 1 accumulated" in shown
    assert re.search(r"D+F+B+", shown)
    assert "B backward 54 %" in shown


def test_a_flood_of_lines_does_not_slow_the_rank_and_is_cut_openly(tmp_path: Path) -> None:
    terminal = Terminal()
    with ProgressDisplay(RunDir(tmp_path), stream=terminal, force_plain=False) as display:
        start_s = time.thread_time()
        for number in range(50_000):
            display.line(f"line {number}")
        assert time.thread_time() - start_s < 2.0
        display.line("x")
    text = without_escapes(terminal.text)
    assert "line 0\n" in text
    assert "lines left out here; the log has them" in text


def test_an_error_inside_the_block_comes_through_and_the_last_state_is_drawn(tmp_path: Path) -> None:
    stream = io.StringIO()
    display = ProgressDisplay(RunDir(tmp_path), stream=stream, force_plain=True)

    def interrupted() -> None:
        with display:
            Simulation(run_dir=RunDir(tmp_path)).write(until=25, status=None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "step 25/40" in stream.getvalue()
    before = len(stream.getvalue())
    display.line("after the end")
    assert stream.getvalue()[before:] == "after the end\n"
    assert not any(thread.name == "progress-display" for thread in threading.enumerate())


def test_a_reader_that_closed_the_pipe_does_not_end_the_run(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = os.fdopen(write_end, "w")
    with ProgressDisplay(RunDir(tmp_path), stream=stream, force_plain=True) as display:
        display.line("to nobody")
        Simulation(run_dir=RunDir(tmp_path)).write()
    with pytest.raises(BrokenPipeError):
        stream.close()


class _BrokenState(RunState):
    def apply(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            raise ZeroDivisionError("a mistake of ours")
        super().apply(event)


@pytest.mark.parametrize("force_plain", [True, False])
def test_a_display_that_fails_says_so_and_the_run_goes_on(tmp_path: Path, force_plain: bool) -> None:
    terminal = Terminal()
    with ProgressDisplay(RunDir(tmp_path), stream=terminal, force_plain=force_plain) as display:
        display._state = _BrokenState()
        Simulation(run_dir=RunDir(tmp_path)).write()
        deadline_s = time.monotonic() + 20
        while "stays off" not in terminal.text and time.monotonic() < deadline_s:
            time.sleep(0.02)
        display.line("still here")
    text = without_escapes(terminal.text)
    assert "the progress display failed and stays off: ZeroDivisionError: a mistake of ours" in text
    assert "still here" in text


def test_ranks_in_processes_of_their_own_are_followed(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from simulated_run import *\n"
        "s = Simulation(run_dir=RunDir(Path(sys.argv[2])), pause_s=0.01, total_steps=40)\n"
        "s._write_rank(int(sys.argv[3]), None, 'done', '')\n"
        "assert 'torch' not in sys.modules and 'rich' not in sys.modules\n"
    )
    stream = io.StringIO()
    here = str(Path(__file__).parent)
    with ProgressDisplay(RunDir(tmp_path), stream=stream, force_plain=True):
        ranks = [
            subprocess.Popen([sys.executable, "-c", code, here, str(tmp_path), str(rank)]) for rank in (0, 1)
        ]
        assert [rank.wait(timeout=60) for rank in ranks] == [0, 0]
    assert "step 40/40" in stream.getvalue().splitlines()[-1]
    assert "700 img/s (by rank 400 300)" in stream.getvalue().splitlines()[-1]


def test_the_display_imports_neither_torch_nor_rich_until_it_draws() -> None:
    code = (
        "import sys, drivetrain.report.progress, drivetrain.report.summary; "
        "assert not {'torch', 'rich', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_the_last_line_alone_tells_the_end() -> None:
    stream = io.StringIO()
    screen, state = PlainScreen(stream, "run"), RunState()
    source = Simulation(run_dir=RunDir(Path("run")), world_size=1, total_steps=30, eval_every=99)
    feed(screen, state, [source.header(0), *source.rank_events(0)], 0.0)
    feed(screen, state, [RunEnded(status="done", step=30, seconds=31.0)], 10.0)
    feed(screen, state, [], 10.1, is_last=True)
    told = [line for line in stream.getvalue().splitlines() if "step 30/30" in line]
    assert len(told) == 1
    assert told[0].endswith("done after 0:31")
