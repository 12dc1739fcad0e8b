"""A finding: what one check says about one node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drivetrain.doctor.facts import NodeFacts


class Status(StrEnum):
    """Worst first is `severity`. What could not be told is NOT_CHECKED, never PASS."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    NOT_CHECKED = "not_checked"

    @property
    def severity(self) -> int:
        return (Status.FAIL, Status.WARN, Status.NOT_CHECKED, Status.PASS).index(self)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a check says: what was found, what was expected, and the command that repairs it."""

    status: Status
    found: str
    expected: str = ""
    fix: str = ""


def passed(found: str, expected: str = "") -> Verdict:
    return Verdict(status=Status.PASS, found=found, expected=expected)


def warned(found: str, expected: str, fix: str) -> Verdict:
    return Verdict(status=Status.WARN, found=found, expected=expected, fix=fix)


def failed(found: str, expected: str, fix: str) -> Verdict:
    return Verdict(status=Status.FAIL, found=found, expected=expected, fix=fix)


def not_checked(reason: str) -> Verdict:
    return Verdict(status=Status.NOT_CHECKED, found=reason)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the doctor's list; `id` is part of the public interface."""

    id: str
    area: str
    judge: Callable[[NodeFacts], Verdict]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A verdict with its check's id and the node that it is about."""

    id: str
    area: str
    status: Status
    found: str
    expected: str
    fix: str
    node: str

    def to_json(self) -> dict[str, str]:
        return {
            "id": self.id,
            "status": str(self.status),
            "found": self.found,
            "expected": self.expected,
            "fix": self.fix,
            "node": self.node,
        }


def run_check(check: Check, facts: NodeFacts) -> Finding:
    verdict = check.judge(facts)
    return Finding(
        id=check.id,
        area=check.area,
        status=verdict.status,
        found=verdict.found,
        expected=verdict.expected,
        fix=verdict.fix,
        node=facts.node,
    )
