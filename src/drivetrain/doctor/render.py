"""Findings as text: the worst area first, the worst finding first, repairs under what they repair."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from drivetrain.doctor.finding import Finding, Status

_WIDTH = 110
_WORDS = {Status.FAIL: "FAIL", Status.WARN: "WARN", Status.PASS: "pass", Status.NOT_CHECKED: "not checked"}


def render(findings: Sequence[Finding], *, is_verbose: bool = False) -> str:
    """The text report. Without `is_verbose`, what passed or was not checked is named in a line an area."""
    nodes = list(dict.fromkeys(finding.node for finding in findings))
    lines: list[str] = []
    for node in nodes:
        mine = [finding for finding in findings if finding.node == node]
        lines += [f"Node {node}", ""] if len(nodes) > 1 else []
        for area in _worst_first(mine):
            lines += [*_area(area, [finding for finding in mine if finding.area == area], is_verbose), ""]
    lines.append(summary(findings))
    return "\n".join(lines)


def summary(findings: Iterable[Finding]) -> str:
    """`2 fail, 1 warn, 30 pass, 12 not checked`."""
    counts = Counter(finding.status for finding in findings)
    order = (Status.FAIL, Status.WARN, Status.PASS, Status.NOT_CHECKED)
    return ", ".join(f"{counts[status]} {_WORDS[status].lower()}" for status in order)


def _worst_first(findings: Sequence[Finding]) -> list[str]:
    areas = list(dict.fromkeys(finding.area for finding in findings))
    worst = {area: min(item.status.severity for item in findings if item.area == area) for area in areas}
    return sorted(areas, key=lambda area: worst[area])


def _area(area: str, findings: Sequence[Finding], is_verbose: bool) -> list[str]:
    lines = [area]
    for finding in sorted(findings, key=lambda item: item.status.severity):
        is_trouble = finding.status in (Status.FAIL, Status.WARN)
        if is_trouble or is_verbose:
            lines += _wrap(f"  {_WORDS[finding.status]:<5} {finding.id}: ", finding.found)
            if is_trouble:
                lines += _wrap("          expected: ", finding.expected) if finding.expected else []
                lines += _wrap("          repair:   ", finding.fix) if finding.fix else []
    if not is_verbose:
        for status in (Status.PASS, Status.NOT_CHECKED):
            named = [finding.id for finding in findings if finding.status is status]
            lines += _wrap(f"  {_WORDS[status]}: ", ", ".join(named)) if named else []
    return lines


def _wrap(start: str, text: str) -> list[str]:
    # Commands stay in one piece for copying: only long words are left too wide.
    return textwrap.wrap(
        text,
        width=_WIDTH,
        initial_indent=start,
        subsequent_indent=" " * min(len(start), 20),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [start.rstrip()]
