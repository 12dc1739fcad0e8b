"""What stands behind the links of a row: CPU affinity, NUMA affinity, the NUMA node of the GPU's memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from drivetrain.hardware.topology.graph import read_ranges
from drivetrain.spec.unknown import Unknown

_ABSENT = Unknown("the matrix has no such column")
_EMPTY = Unknown("the column is empty or N/A")
_BAD = Unknown("the column cannot be read")


@dataclass(frozen=True, kw_only=True)
class Affinity:
    cpus: frozenset[int] | Unknown = _ABSENT
    numa: frozenset[int] | Unknown = _ABSENT
    memory_numa: int | None = None


def read_affinity(tail: str, columns: tuple[str, ...]) -> Affinity:
    """Reads `0-19,40-59 0 N/A`, with its empty cells.

    nvidia-smi pads by tabs that match no heading, so between tabs only the first place is sure (CPU
    affinity, which may be empty); the others are told by their order. Without a heading (`columns` empty)
    only a list of CPUs is taken.
    """
    tail = re.sub(r",\s+(?=\d)", ",", tail)
    words = tail.split()
    if not words:
        return Affinity() if not columns else Affinity(cpus=_EMPTY, numa=_EMPTY)
    known = columns or ("cpus", "numa", "gpu_numa")
    places = list(known)
    parts = [part.strip() for part in tail.split("\t")]
    if parts[0] == "" and len(parts) > 2 and parts[1] == "" and known[0] == "cpus":
        places = places[1:]  # the CPU cell stands there and is empty
    elif len(words) < len(places) and known[0] == "cpus" and not re.search(r"[-,]", words[0]):
        places = places[1:] if words[0] != "N/A" else places
    values: dict[str, str] = {}
    if len(words) >= len(places) or "\t" in tail or all(word == "N/A" for word in words[1:]):
        values = dict(zip(places, words, strict=False))
    elif places[0] == "cpus":
        values = {"cpus": words[0]}  # which of the others is missing cannot be told
    memory = read_ranges(values.get("gpu_numa", ""))
    return Affinity(
        cpus=_ranges(values, "cpus", known),
        numa=_ranges(values, "numa", known) if columns or len(words) > 1 else _ABSENT,
        memory_numa=next(iter(memory)) if memory is not None and len(memory) == 1 else None,
    )


def _ranges(values: dict[str, str], name: str, known: tuple[str, ...]) -> frozenset[int] | Unknown:
    if name not in known:
        return _ABSENT
    text = values.get(name, "N/A")
    if text == "N/A":
        return _EMPTY
    numbers = read_ranges(text)
    return _BAD if numbers is None else numbers


def check_affinities(affinities: dict[int, Affinity]) -> tuple[dict[int, Affinity], list[str]]:
    """Drops what contradicts the other rows: CPUs that overlap another GPU's in part, as a cut list does,
    and one list of CPUs on two NUMA nodes. Returns what is left, and a sentence for each that went."""
    checked = dict(affinities)
    problems = []
    for index, affinity in affinities.items():
        mine = affinity.cpus
        if not isinstance(mine, frozenset):
            continue
        others = [other for at, other in affinities.items() if at != index]
        lists = [other.cpus for other in others if isinstance(other.cpus, frozenset)]
        overlapping = sum(1 for other in lists if mine & other and mine != other)
        if overlapping > lists.count(mine):
            problems.append(f"CPU affinity of GPU{index} overlaps that of other GPUs in part")
            checked[index] = replace(affinity, cpus=Unknown("it overlaps that of other GPUs in part"))
        same = [other for other in others if other.cpus == mine and isinstance(other.numa, frozenset)]
        differing = sum(1 for other in same if other.numa != affinity.numa)
        if isinstance(affinity.numa, frozenset) and differing > len(same) - differing:
            problems.append(f"NUMA affinity of GPU{index} is not that of the GPUs with the same CPUs")
            checked[index] = replace(checked[index], numa=Unknown("GPUs with the same CPUs have another"))
    return checked, problems
