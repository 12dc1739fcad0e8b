"""How numbers are put into words: durations, rates, shares, metrics; and text for terminals without UTF-8."""

from __future__ import annotations

import math
from typing import Final

_ASCII: Final = str.maketrans(
    {
        "·": "|",
        "×": "x",
        "→": "->",
        "…": "...",
        "–": "-",
        "—": "-",
        "≤": "<=",
        "≥": ">=",
        "µ": "u",
        "“": '"',
        "”": '"',
        "’": "'",
        "█": "#",
        "░": "-",
    }
)
_LOWER_IS_BETTER: Final = ("loss", "error", "err", "perplexity", "ppl", "mse", "mae")
_PREFERRED_METRICS: Final = ("accuracy", "top1", "acc1", "acc")


def printable(text: str, encoding: str) -> str:
    """`text` with what `encoding` cannot carry spelled in ASCII or replaced by "?"."""
    if not is_utf(encoding):
        text = text.translate(_ASCII)
    return text.encode(encoding, "replace").decode(encoding)


def is_utf(encoding: str) -> bool:
    return encoding.lower().startswith("utf")


def duration(seconds: float) -> str:
    """0:07, 12:03, 3:05:00, 2 d 03:05; with tenths below ten seconds ("3.2 s")."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 10:
        return f"{seconds:.1f} s"
    return clock_time(seconds)


def clock_time(seconds: float) -> str:
    """As `duration`, always in minutes and seconds: for a figure that counts down."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour:02d}:{minute:02d}"
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"


def short_time(seconds: float) -> str:
    """What one step takes: 0.412 ms, 52.1 ms, 5.28 s, 2:05; three digits, in the unit that fits."""
    if seconds >= 99.95:
        return duration(seconds)
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{1000 * seconds:.3g} ms"


def step_of(step: int, total_steps: int) -> str:
    """step 12/180; without the total where the run has no end of its own."""
    return f"step {count(step)}/{count(total_steps)}" if total_steps > 0 else f"step {count(step)}"


def count(number: int) -> str:
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def rate(per_s: float) -> str:
    """Three digits that mean something: 12,345, 812, 8.12."""
    if per_s >= 100:
        return f"{per_s:,.0f}"
    return f"{per_s:.1f}" if per_s >= 10 else f"{per_s:.2f}"


def speed(samples_per_s: float, unit: str, tokens_per_sample: int | None = None) -> str:
    """ "812 img/s", and of samples that are tokens: "81.2 seq/s, 10,394 tok/s"."""
    text = f"{rate(samples_per_s)} {unit}/s"
    if tokens_per_sample is None:
        return text
    return f"{text}, {rate(samples_per_s * tokens_per_sample)} tok/s"


def share(part: float) -> str:
    """A percentage; a part that is there is never rounded to nothing."""
    percent = round(100 * part)
    return "<1 %" if percent == 0 and part > 0 else f"{percent} %"


def num_bytes(number: int) -> str:
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def metric(name: str, value: float) -> str:
    """A metric's value with its name; shares such as accuracies in per cent."""
    short = name.rsplit("/", 1)[-1]
    is_share = any(word in short.lower() for word in ("acc", "top1", "top5")) and 0 <= value <= 1
    return f"{short} {100 * value:.2f} %" if is_share else f"{short} {value:.4g}"


def lower_is_better(name: str) -> bool:
    return any(word in name.lower() for word in _LOWER_IS_BETTER)


def main_metric(names: list[str]) -> str | None:
    """The metric by which "best" is judged: an accuracy where there is one, or else the first."""
    for wanted in _PREFERRED_METRICS:
        for name in names:
            if name.rsplit("/", 1)[-1].lower() == wanted:
                return name
    return names[0] if names else None


def rank_ranges(ranks: list[int]) -> str:
    """0–3, 8: consecutive ranks drawn together."""
    pieces: list[str] = []
    start = previous = None
    for rank in [*sorted(ranks), None]:
        if start is not None and previous is not None and rank != previous + 1:
            pieces.append(f"{start}" if start == previous else f"{start}–{previous}")
            start = None
        if start is None:
            start = rank
        previous = rank
    return ", ".join(pieces)
