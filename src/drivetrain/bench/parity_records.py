"""What each rank of a trial writes down, one JSON object a line, and how it is read back.

A trial is the recipe trained for some steps under one strategy on some ranks. Numbers are written in full, so
that what is read is what was computed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["done", "refused", "failed"]
What = Literal["weight", "gradient", "buffer"]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample as the model got it: its index in the data set, and a digest of its tensors."""

    id: int
    content: str


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A micro-batch of this rank: its samples, those of them that are valid, and its weight."""

    size: int
    num_valid: float
    weight: float


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """A tensor without its elements: its 2-norm, and its inner products with fixed random directions.

    The direction vectors have independent standard normal elements, so for two tensors the mean square of
    the differences of their products estimates the squared norm of their difference without bias.
    """

    norm: float
    products: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """One step on one rank. `step` counts from 1.

    Attributes:
        samples: by position in the stream.
        loss, grad_norm: of the global batch, as the control word says; grad_norm None where nothing clips.
        drew_random: whether the forward drew from torch's generators (dropout).
    """

    step: int
    samples: Mapping[int, Sample]
    pieces: tuple[Piece, ...]
    loss: float
    grad_norm: float | None
    drew_random: bool


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """What a rank knows before its first step.

    Attributes:
        layout, batch: in words.
        batch_norms, dropouts: names of the modules that normalise by batch, and that drop out.
    """

    layout: str
    batch: str
    strategy: str
    batch_norms: tuple[str, ...] = ()
    dropouts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """All that one rank wrote. `prints` holds the fingerprints by (step, what), then by the tensor's name;
    those of weights at step 0 are the weights that training starts from."""

    rank: int
    facts: RankFacts | None = None
    steps: Mapping[int, RankStep] = field(default_factory=dict)
    prints: Mapping[tuple[int, What], Mapping[str, Fingerprint]] = field(default_factory=dict)
    status: Status = "failed"
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """What all ranks of a trial wrote, by rank. `reason`: why it did not end well, "" where it did."""

    ranks: tuple[RankRecord, ...]
    reason: str = ""

    @property
    def status(self) -> Status:
        """Refused where any rank was: the others may have been ended because of it."""
        states = [rank.status for rank in self.ranks]
        return "refused" if "refused" in states else "failed" if "failed" in states else "done"

    @property
    def facts(self) -> RankFacts | None:
        return next((rank.facts for rank in self.ranks if rank.facts is not None), None)


class RecordWriter:
    """Writes one rank's record, a line at a time, so that what a killed rank has done is known."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def facts(self, facts: RankFacts) -> None:
        self._write("facts", vars(facts))

    def step(self, step: RankStep) -> None:
        samples = [(position, s.id, s.content) for position, s in step.samples.items()]
        pieces = [(p.size, p.num_valid, p.weight) for p in step.pieces]
        self._write("step", {**vars(step), "samples": samples, "pieces": pieces})

    def prints(self, step: int, what: What, prints: Mapping[str, Fingerprint]) -> None:
        tensors = {name: (p.norm, *p.products) for name, p in prints.items()}
        self._write("prints", {"step": step, "what": what, "tensors": tensors})

    def end(self, status: Status, reason: str = "") -> None:
        self._write("end", {"status": status, "reason": reason})
        self._file.close()

    def _write(self, kind: str, content: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"kind": kind, **content}) + "\n")
        self._file.flush()


def read_record(path: Path, rank: int, *, missing: str) -> RankRecord:
    """The record at `path`. `missing` is the reason to give where the rank could not say how it ended."""
    facts, status, reason = None, "failed", missing
    steps: dict[int, RankStep] = {}
    prints: dict[tuple[int, What], dict[str, Fingerprint]] = {}
    for kind, content in _lines(path):
        if kind == "facts":
            facts = _facts(content)
        elif kind == "step":
            steps[content["step"]] = _step(content)
        elif kind == "prints":
            # Stages of one rank write apart.
            known = prints.setdefault((content["step"], content["what"]), {})
            known |= {
                name: Fingerprint(norm=numbers[0], products=tuple(numbers[1:]))
                for name, numbers in content["tensors"].items()
            }
        elif kind == "end":
            status, reason = content["status"], content["reason"]
    return RankRecord(
        rank=rank, facts=facts, steps=steps, prints=prints, status=_status(status), reason=reason
    )


def _facts(content: dict[str, Any]) -> RankFacts:
    lists = {key: tuple(content[key]) for key in ("batch_norms", "dropouts")}
    return RankFacts(**{**content, **lists})


def _status(text: str) -> Status:
    assert text in ("done", "refused", "failed"), text
    return text  # type: ignore[return-value]


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kind and content of each whole line; the last may be torn where the rank was killed."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                content = json.loads(line)
                yield content.pop("kind"), content


def _step(content: dict[str, Any]) -> RankStep:
    samples = {position: Sample(id=id_, content=text) for position, id_, text in content["samples"]}
    pieces = tuple(Piece(size=size, num_valid=valid, weight=w) for size, valid, w in content["pieces"])
    return RankStep(**{**content, "samples": samples, "pieces": pieces})
