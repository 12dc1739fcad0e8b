"""The panel on a terminal that others write to as well: what stands there at the end."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from screen_model import ScreenModel
from simulated_run import Simulation

from drivetrain.report.live import LiveScreen
from drivetrain.report.state import RunState
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import Event, RunEnded

WIDTH = 80


class Terminal(io.TextIOBase):
    """Shows what is written to it, and what is typed, on a model of a screen."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.screen = ScreenModel(WIDTH)

    def write(self, text: str) -> int:
        self.screen.feed(text)
        return len(text)

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def events(simulation: Simulation) -> Iterator[Event]:
    yield simulation.header(0)
    for event in simulation.rank_events(0):
        yield replace(event, rank=0)


@contextmanager
def running(terminal: Terminal, *, steps: int = 20) -> Iterator[tuple[LiveScreen, RunState]]:
    """A screen and a run of one rank, in its middle."""
    state = RunState()
    screen = LiveScreen(terminal, "run")  # type: ignore[arg-type]  # a TextIO in all that is used of it
    screen.start()
    source = events(Simulation(run_dir=RunDir(Path("run")), world_size=1))
    for number in range(steps):
        state.apply(next(source))
        screen.update(state, now_s=float(number), stalled_s=0.0)
    yield screen, state
    screen.update(state, now_s=1000.0, stalled_s=0.0, is_last=True)
    screen.stop()


def borders(terminal: Terminal) -> tuple[int, int]:
    lines = terminal.screen.lines
    return sum(line.startswith("╭") for line in lines), sum(line.startswith("╰") for line in lines)


@pytest.mark.parametrize("echo", ["^C", "^C^C", "^\\", "q"])
def test_what_the_terminal_echoes_leaves_no_piece_of_the_panel_behind(echo: str) -> None:
    terminal = Terminal()
    with running(terminal) as (screen, state):
        terminal.screen.feed(echo)
        for number in range(30):
            screen.raw(f"[rank0]:   File {number}")
        screen.update(state, now_s=100.0, stalled_s=0.0)
        terminal.screen.feed(echo)
        screen.raw("[rank0]: KeyboardInterrupt")
        state.apply(RunEnded(rank=0, status="failed", reason="KeyboardInterrupt", step=20, seconds=9.9))
    assert borders(terminal) == (1, 1)
    lines = terminal.screen.lines
    assert lines.index("[rank0]:   File 29") < lines.index("[rank0]: KeyboardInterrupt")
    assert "interrupted after 9.9 s" in terminal.screen.lines[lines.index("[rank0]: KeyboardInterrupt") + 2]
    assert not any(echo in line for line in lines)


def test_lines_longer_than_the_screen_push_the_panel_down_whole() -> None:
    terminal = Terminal()
    with running(terminal) as (screen, state):
        for width in (WIDTH - 1, WIDTH, WIDTH + 1, 3 * WIDTH):
            screen.raw("x" * width)
            screen.update(state, now_s=100.0 + width, stalled_s=0.0)
    assert borders(terminal) == (1, 1)


def test_what_this_process_prints_to_stderr_is_shown_above_the_panel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with running(terminal) as (screen, state):
        held = sys.stderr
        print("a warning of the agent", file=sys.stderr)
        print("without an end", end="", file=sys.stderr)
        screen.update(state, now_s=100.0, stalled_s=0.0)
    assert sys.stderr is terminal
    print("after the end", file=held)
    assert borders(terminal) == (1, 1)
    lines = terminal.screen.lines
    bottom = next(number for number, line in enumerate(lines) if line.startswith("╰"))
    assert lines.index("a warning of the agent") < bottom
    assert lines.index("without an end") < bottom
    assert lines.index("after the end") > bottom


def test_done_and_undone_differ_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    with running(terminal, steps=30) as (_, state):
        pass
    done = 76 * state.step // 40
    assert any(line == f"│ {'█' * done}{'░' * (76 - done)} │" for line in terminal.screen.lines)
