"""The first lines of a run: what runs where, and what `auto` chose."""

from __future__ import annotations

from typing import Final

from drivetrain.report.state import RunState
from drivetrain.report.wording import count, plural, rank_ranges
from drivetrain.telemetry.events import RunStarted

_MOST_RANKS_NAMED: Final = 8


def opening_lines(state: RunState, run_path: str) -> list[str]:
    """A few lines, or none before the run has said what it trains."""
    started = state.started
    if started is None:
        return []
    lines = [f"{started.name}: {_amount(started)}, {started.strategy}, {started.precision}"]
    lines += _places(state, started)
    if started.batch:
        lines.append(started.batch)
    if started.loader:
        lines.append(f"loader: {started.loader}")
    lines += started.notes
    lines.append(f"writes to {run_path}")
    return [lines[0], *(f"  {line}" for line in lines[1:])]


def waiting_text(state: RunState) -> str:
    """What the run waits for before it has said what it trains, as far as that is known."""
    joined, expected = state.joined_ranks, state.world_size
    if not joined:
        have = f"0 of {count(expected)} have" if expected is not None else "none has yet"
        return f"waiting for the ranks to start ({have}; importing torch takes some seconds)"
    assert expected is not None
    missing = [rank for rank in range(expected) if rank not in joined]
    if missing:
        names = f": {rank_ranges(missing)}" if len(missing) <= _MOST_RANKS_NAMED else ""
        return f"{count(len(joined))} of {plural(expected, 'rank')} have started; waiting for the rest{names}"
    return (
        f"{count(len(joined))} of {plural(expected, 'rank')} started; next come the model, "
        "the data and a checkpoint to resume from, if there is one"
    )


def _amount(started: RunStarted) -> str:
    steps = plural(started.total_steps, "step") if started.total_steps > 0 else "steps"
    text = f"{steps} of {plural(started.global_batch, 'sample')}"
    if started.num_samples > 0 and started.total_steps > 0:
        epochs = started.total_steps * started.global_batch / started.num_samples
        text += f" ({epochs:.4g} × {count(started.num_samples)})"
    if started.start_step:
        text += f", resumed after step {count(started.start_step)}"
    return text


def _places(state: RunState, started: RunStarted) -> list[str]:
    """One line a host and kind of device."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, header in sorted(state.headers.items()):
        device = started.devices[rank] if rank < len(started.devices) else "device not known"
        groups.setdefault((header.host, device.split(":")[0]), []).append(rank)
    lines = []
    for (host, _), ranks in groups.items():
        names = dict.fromkeys(started.devices[rank] for rank in ranks if rank < len(started.devices))
        shown = ", ".join(list(names)[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        word = "rank" if len(ranks) == 1 else "ranks"
        lines.append(f"{word} {rank_ranges(ranks)} of {started.world_size} on {host}: {shown or 'not known'}")
    return lines
