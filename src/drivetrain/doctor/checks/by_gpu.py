"""One verdict over all GPUs of a node: the trouble by GPU, and nothing passed that was not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from drivetrain.doctor.facts import ABSENT, Gpu, NodeFacts
from drivetrain.doctor.finding import Status, Verdict, not_checked, passed
from drivetrain.spec.unknown import Unknown

T = TypeVar("T")
Trouble = tuple[Status, str]
"""How bad, and what was found; the label of the GPU is put before it."""


def gpus_or_verdict(facts: NodeFacts) -> tuple[Gpu, ...] | Verdict:
    if isinstance(facts.gpus, Unknown):
        return not_checked(facts.gpus.reason)
    return facts.gpus or not_checked("no GPU here")


def judge_gpus(
    facts: NodeFacts,
    read: Callable[[Gpu], T | Unknown],
    judge: Callable[[Gpu, T], Trouble | None],
    *,
    good: Callable[[Sequence[T]], str],
    expected: str,
    fix: Callable[[Sequence[Gpu]], str] | str,
) -> Verdict:
    """The worst that `judge` says of any GPU's value.

    GPUs whose value is Unknown are named; where all known ones are fine but some are Unknown, the verdict is
    not_checked.
    """
    gpus = gpus_or_verdict(facts)
    if isinstance(gpus, Verdict):
        return gpus
    seen: list[T] = []
    troubles: list[tuple[Gpu, Trouble]] = []
    unknown: list[tuple[Gpu, Unknown]] = []
    for gpu in gpus:
        value = read(gpu)
        if isinstance(value, Unknown):
            unknown.append((gpu, value))
            continue
        seen.append(value)
        if (trouble := judge(gpu, value)) is not None:
            troubles.append((gpu, trouble))
    if troubles:
        status = min((trouble[0] for _, trouble in troubles), key=lambda status: status.severity)
        found = _grouped([(gpu.label, trouble[1]) for gpu, trouble in troubles])
        repair = fix if isinstance(fix, str) else fix([gpu for gpu, _ in troubles])
        return Verdict(status=status, found=found, expected=expected, fix=repair)
    if unknown:
        reasons = _grouped([(gpu.label, why.reason) for gpu, why in unknown])
        if not seen:
            return not_checked(unknown[0][1].reason if all(why == ABSENT for _, why in unknown) else reasons)
        return not_checked(f"{reasons}; the other {len(seen)} are fine")
    return passed(good(seen), expected)


def _grouped(items: Sequence[tuple[str, str]]) -> str:
    """`GPU 0, 1: off; GPU 2: lost`."""
    by_text: dict[str, list[str]] = {}
    for label, text in items:
        by_text.setdefault(text, []).append(label.removeprefix("GPU "))
    return "; ".join(f"GPU {', '.join(labels)}: {text}" for text, labels in by_text.items())


def indices(gpus: Sequence[Gpu]) -> str:
    """For `nvidia-smi -i`: indices, else bus ids."""
    return ",".join(str(gpu.index if isinstance(gpu.index, int) else gpu.bus_id) for gpu in gpus)
