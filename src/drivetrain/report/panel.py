"""The live panel: one screenful that says where a run stands."""

from __future__ import annotations

import math
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from drivetrain.report import wording
from drivetrain.report.opening import waiting_text
from drivetrain.report.phrases import end_text, eval_text, nothing_left_text, saved_text, stall_text
from drivetrain.report.state import RunState
from drivetrain.report.throughput import Rates
from drivetrain.spec.parts import StepPart

_MOST_RANKS: Final = 8
_STALL_S: Final = 10.0
# A colour, and a letter for where colours are not shown.
_PART_LOOKS: Final[dict[StepPart, tuple[str, str]]] = {
    StepPart.DATA_WAIT: ("red", "D"),
    StepPart.HOST_TO_DEVICE: ("magenta", "T"),
    StepPart.FORWARD: ("green", "F"),
    StepPart.BACKWARD: ("cyan", "B"),
    StepPart.EXPOSED_COMM: ("yellow", "C"),
    StepPart.STRAGGLER_WAIT: ("bright_red", "S"),
    StepPart.OPTIMIZER: ("blue", "O"),
    StepPart.HOST: ("white", "H"),
    StepPart.CHECKPOINT: ("bright_black", "K"),
}


def panel(
    state: RunState, *, width: int, encoding: str, stalled_s: float, is_last: bool = False
) -> RenderableType:
    """The panel for a terminal `width` columns wide; a line that does not fit is cut, but a
    wait is told in full.

    Args:
        stalled_s: seconds since the last step, or before the first since the start.
        is_last: nothing more will come, so nothing is expected either.
    """
    utf = wording.is_utf(encoding)
    inner = max(width - 4, 8)
    lines: list[RenderableType] = []

    def line(text: str | Text, style: str = "", *, is_cut: bool = True) -> None:
        shown = Text(wording.printable(text, encoding), style=style) if isinstance(text, str) else text
        shown.no_wrap = is_cut
        shown.overflow = "ellipsis" if utf else "crop"
        lines.append(shown)

    started = state.started
    if started is None:
        line("the run ended before it had begun" if is_last else waiting_text(state), is_cut=False)
        if not is_last:
            line(f"{wording.duration(stalled_s)} so far", "dim")
        return _framed(lines, "drivetrain", width, encoding)
    rates = state.rates()
    line(_where(state, rates, is_last=is_last))
    if stalled_s > _STALL_S and state.ended is None and not is_last:
        line(stall_text(state, stalled_s), "yellow", is_cut=False)
    line(_progress(state.step, started.total_steps, inner, utf))
    line(_quality(state))
    if state.last_eval is not None:
        line(eval_text(state))
    for text in _speed(rates, started.sample_unit, started.tokens_per_sample):
        line(text)
    shares = state.recent_part_shares()
    if shares:
        line(_bar(shares, inner))
        line(_legend(shares, rates.seconds_per_step))
    if started.batch:
        line(started.batch, "dim")
    line(_kept(state), "dim")
    title = f"{started.name} · {started.strategy} · {_devices(started.devices)} · {started.precision}"
    return _framed(lines, title, width, encoding)


def _framed(lines: list[RenderableType], title: str, width: int, encoding: str) -> Panel:
    shown = wording.printable(title, encoding)[: max(width - 6, 0)]
    frame = box.ROUNDED if wording.is_utf(encoding) else box.ASCII
    return Panel(Group(*lines), title=Text(shown), title_align="left", box=frame, width=width, padding=(0, 1))


def _where(state: RunState, rates: Rates, *, is_last: bool) -> str:
    assert state.started is not None
    if state.nothing_was_left:
        return nothing_left_text(state)
    total = state.started.total_steps
    pieces = [wording.step_of(state.step, total)]
    if state.epoch is not None and total > 0:
        epochs = total * state.started.global_batch / state.started.num_samples
        pieces.append(f"epoch {state.epoch:.2f}/{epochs:.4g}")
    eta_s = state.eta_s(rates)
    if state.ended is not None:
        pieces.append(end_text(state))
    elif eta_s is not None and total > 0 and not is_last:
        pieces.append(f"ETA {wording.clock_time(eta_s)}")
    return " · ".join(pieces)


def _quality(state: RunState) -> str:
    pieces = []
    if state.loss.value is not None:
        pieces.append(f"loss {state.loss.value:.4g}")
    if state.lr is not None:
        pieces.append(f"lr {state.lr:.3g}")
    if state.grad_norm is not None:
        norm = f"{state.grad_norm:.3g}" if math.isfinite(state.grad_norm) else str(state.grad_norm)
        pieces.append(f"gradient norm {norm}")
    return " · ".join(pieces) or "loss not known yet"


def _speed(rates: Rates, unit: str, tokens_per_sample: int | None) -> list[str]:
    if rates.samples_per_s is None and not rates.per_rank:
        return ["rate not known yet (the first steps are not counted)"]
    known = [
        (rank, item.samples_per_s, item.data_wait_share)
        for rank, item in rates.per_rank.items()
        if item.samples_per_s is not None
    ]
    total = "not known yet" if rates.samples_per_s is None else wording.rate(rates.samples_per_s)
    speed = f"{unit}/s {total} total"
    if tokens_per_sample is not None and rates.samples_per_s is not None:
        speed += f" · tok/s {wording.rate(rates.samples_per_s * tokens_per_sample)}"
    wait = f"data wait {_share(rates.data_wait_share)}"
    if len(known) == 1:
        return [f"{speed} · {wait}"]
    if len(known) <= _MOST_RANKS:
        shown = known
        more = ""
    else:
        by_speed = sorted(known, key=lambda item: item[1])
        shown = [by_speed[0], by_speed[len(by_speed) // 2], by_speed[-1]]
        more = " (slowest, median, fastest)"
    return [
        f"{speed} · by rank{more} "
        + " · ".join(f"{rank}: {wording.rate(per_s)}" for rank, per_s, _ in shown),
        f"{wait} · by rank{more} " + " · ".join(f"{rank}: {_share(part)}" for rank, _, part in shown),
    ]


def _share(part: float | None) -> str:
    return "not known" if part is None else wording.share(part)


def _progress(step: int, total_steps: int, width: int, utf: bool) -> Text:
    done = min(width * step // max(total_steps, 1), width)
    text = Text(("█" if utf else "=") * done, style="green")
    return text.append(("░" if utf else "-") * (width - done), style="bright_black")


def _bar(shares: dict[StepPart, float], width: int) -> Text:
    """One row of letters, divided by share; a part gets no cell when it is smaller than half of one."""
    text = Text()
    edge = 0.0
    drawn = 0
    for part, portion in shares.items():
        edge += portion * width
        cells = max(min(round(edge), width) - drawn, 0)
        drawn += cells
        colour, letter = _PART_LOOKS[part]
        text.append(letter * cells, style=f"black on {colour}")
    return text


def _legend(shares: dict[StepPart, float], step_s: float | None) -> Text:
    text = Text()
    if step_s is not None:
        text.append(f"step {wording.short_time(step_s)}: ")
    for part, portion in sorted(shares.items(), key=lambda item: -item[1]):
        colour, letter = _PART_LOOKS[part]
        name = part.value.replace("_", " ")
        text.append(f"{letter} {name} {wording.share(portion)}  ", style=colour)
    return text


def _kept(state: RunState) -> str:
    text = "nothing saved yet" if state.checkpoint is None else saved_text(state.checkpoint)
    if state.num_skipped:
        text += f" · {wording.plural(state.num_skipped, 'bad sample')} skipped"
    return text


def _devices(devices: tuple[str, ...]) -> str:
    """2 × cpu, 8 × NVIDIA H200: equal ones counted."""
    counts: dict[str, int] = {}
    for device in devices:
        kind, _, rest = device.partition(" ")
        name = rest or kind.split(":")[0]
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{number} × {name}" for name, number in counts.items())
