"""What a diagnosis says, and its JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drivetrain.diagnose.rules import Confidence


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A line that something rests on. `line` counts from 1; `file` is "-" for standard input."""

    file: str
    line: int
    text: str
    rank: int | None = None
    node: str | None = None


@dataclass(frozen=True, kw_only=True)
class Consequence:
    """Something else that the log tells and that followed from the cause."""

    what: str
    evidence: Evidence
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Another cause that the log leaves possible."""

    cause: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Why a job failed.

    Attributes:
        cause: an id of `drivetrain diagnose --causes`; `not_enough_info` where the log does not say.
        says: the cause in a sentence, with the log's numbers where they decide.
        culprit_rank: the rank where it began; None where the log names none, or no single rank is to blame.
        unread: logs that could not be read, and why.
    """

    cause: str
    confidence: Confidence
    title: str
    says: str = ""
    culprit_rank: int | None = None
    node: str | None = None
    evidence: tuple[Evidence, ...] = ()
    consequences: tuple[Consequence, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    fix: str = ""
    collect_next: tuple[str, ...] = ()
    num_lines: int = 0
    num_bytes: int = 0
    unread: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The form of `drivetrain diagnose --json`; its keys are part of the public interface."""
        return {
            "cause": self.cause,
            "confidence": str(self.confidence),
            "title": self.title,
            "says": self.says,
            "culprit_rank": self.culprit_rank,
            "node": self.node,
            "evidence": [_evidence(item) for item in self.evidence],
            "consequences": [
                {"what": item.what, "count": item.count, **_evidence(item.evidence)}
                for item in self.consequences
            ],
            "alternatives": [{"cause": item.cause, "why": item.why} for item in self.alternatives],
            "fix": self.fix,
            "collect_next": list(self.collect_next),
            "read": {"lines": self.num_lines, "bytes": self.num_bytes, "unread": list(self.unread)},
        }


def _evidence(item: Evidence) -> dict[str, Any]:
    return {"file": item.file, "line": item.line, "text": item.text, "rank": item.rank, "node": item.node}
