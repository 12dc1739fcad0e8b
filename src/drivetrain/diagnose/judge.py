"""From matched rules to one verdict: the deepest cause wins over the last message.

Each rule says of what its lines may be a consequence. A claim that another one explains is a consequence.
Of those that nothing explains, what ends a job goes before what only slows it, then what is surer, then what
came first. Where only symptoms are left the log does not say, and so does the verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from drivetrain.diagnose.collect import Findings, Hit
from drivetrain.diagnose.collectives import compare_timeouts
from drivetrain.diagnose.rules import (
    NO_PROBLEM_FOUND,
    NOT_ENOUGH_INFO,
    Blames,
    Confidence,
    Role,
    Rule,
    RuleBook,
)
from drivetrain.diagnose.verdict import Alternative, Consequence, Evidence, Verdict

_MAX_EVIDENCE = 6
_MAX_CONSEQUENCES = 12
_MAX_TEXT_CHARS = 1200
_MAX_RANKS_SHOWN = 16
_UNFILLED = re.compile(r"\{\w+\}")
_CLAUSE_END = re.compile(r"(?<=[,;.]) ")
# Between hosts, and between a cause and what reports it, clocks and buffers may differ so much.
_CLOCKS_DIFFER_S = 60.0
_LATE_GROUPS = frozenset({"kill", "scheduler", "hardware", "driver"})
"""Launchers, schedulers and kernels report these after the ranks have seen their effects."""


@dataclass(frozen=True)
class Claim:
    """What one or several rules say in the log: a cause, or a symptom without one."""

    key: str
    rules: tuple[Rule, ...]
    hits: tuple[Hit, ...]

    @property
    def cause(self) -> str | None:
        return self.rules[0].cause

    @property
    def is_symptom(self) -> bool:
        return self.rules[0].role is Role.SYMPTOM

    @property
    def confidence(self) -> Confidence:
        return min((rule.confidence for rule in self.rules), key=lambda each: each.rank)

    @property
    def first(self) -> Hit:
        return self.hits[0]


def judge(findings: Findings) -> Verdict:
    """The verdict on all that was found."""
    extent = findings.extent
    return replace(
        _decide(findings),
        num_lines=extent.num_lines,
        num_bytes=extent.num_bytes,
        unread=tuple(findings.unread),
    )


def _decide(findings: Findings) -> Verdict:
    claims = _claims(findings)
    explained = _explained(claims, findings)
    roots = [claim for claim in claims if claim.key not in explained]
    causes = sorted(
        (claim for claim in roots if not claim.is_symptom), key=lambda claim: _order(claim, findings)
    )
    symptoms = [claim for claim in roots if claim.is_symptom]
    ends_job = [claim for claim in causes if not _is_warning(claim, findings)]
    if ends_job or (causes and not symptoms):
        return _caused(causes, claims, explained, findings)
    if symptoms:
        return _unexplained(symptoms, claims, causes, findings)
    return _quiet(findings)


def _claims(findings: Findings) -> list[Claim]:
    """Active rules, those of the same cause together; in the order of their first lines."""
    active = _active(findings)
    by_key: dict[str, list[tuple[Rule, tuple[Hit, ...]]]] = {}
    for rule, hits in active:
        if rule.role in (Role.CAUSE, Role.SYMPTOM):
            by_key.setdefault(rule.cause or rule.id, []).append((rule, hits))
    if (compared := compare_timeouts(findings)) is not None:
        rule, hits = compared
        by_key.setdefault(rule.cause or rule.id, []).append((rule, hits))
    claims = [_claim(key, parts) for key, parts in by_key.items()]
    return sorted(claims, key=lambda claim: claim.first.line.order)


def _claim(key: str, parts: list[tuple[Rule, tuple[Hit, ...]]]) -> Claim:
    best = min(rule.confidence.rank for rule, _ in parts)
    parts.sort(key=lambda part: (part[0].confidence.rank != best, part[1][0].line.order))
    hits = sorted((hit for _, hits in parts for hit in hits), key=_by_time)
    return Claim(key, tuple(rule for rule, _ in parts), tuple(hits))


def _active(findings: Findings) -> list[tuple[Rule, tuple[Hit, ...]]]:
    book = findings.book
    hits = {rule.id: found for rule in book.rules if (found := findings.hits(rule.id))}
    # Only rules that themselves hold can be what others need, or contradict them.
    matched = _with_causes(hits, book)
    holding = _with_causes([name for name in hits if _holds(book.by_id[name], matched)], book)
    return [
        (rule, hits[rule.id]) for rule in findings.book.rules if rule.id in hits and _holds(rule, holding)
    ]


def _with_causes(names: Iterable[str], book: RuleBook) -> set[str]:
    rules = [book.by_id[name] for name in names]
    return {rule.id for rule in rules} | {rule.cause for rule in rules if rule.cause is not None}


def _holds(rule: Rule, matched: set[str]) -> bool:
    needed = all(matched.intersection(name.split("|")) for name in rule.needs)
    return needed and matched.isdisjoint(rule.unless)


def _explained(claims: Sequence[Claim], findings: Findings) -> dict[str, str]:
    """Consequence → what explains it. Of two that could explain each other the earlier is the cause."""
    names = {claim.key: {claim.key, *(rule.id for rule in claim.rules)} for claim in claims}
    causes_of = {
        claim.key: [
            other for other in claims if other is not claim and _can_explain(other, claim, names, findings)
        ]
        for claim in claims
    }
    explained: dict[str, str] = {}
    for claim in claims:
        for other in causes_of[claim.key]:
            mutual = claim in causes_of[other.key]
            if mutual and _by_time(claim.first) <= _by_time(other.first):
                continue
            explained.setdefault(claim.key, other.key)
    return explained


def _can_explain(cause: Claim, effect: Claim, names: dict[str, set[str]], findings: Findings) -> bool:
    if _is_warning(cause, findings) and not _is_warning(effect, findings):
        named = any(
            findings.book.may_follow(rule) & names[cause.key] and _is_named(rule, cause, findings)
            for rule in effect.rules
        )
    else:
        named = all(findings.book.may_follow(rule) & names[cause.key] for rule in effect.rules)
    return named and not _came_too_late(cause, effect, findings)


def _is_named(rule: Rule, cause: Claim, findings: Findings) -> bool:
    """Whether `rule` names the cause itself: what only slows a job ends one only where that is said."""
    own = findings.book.causes[rule.cause].follows if rule.cause else frozenset()
    return cause.key in rule.follows | own


def _came_too_late(cause: Claim, effect: Claim, findings: Findings) -> bool:
    group = findings.book.causes[cause.cause].group if cause.cause else ""
    first, then = cause.first.line.stamp, effect.first.line.stamp
    if group in _LATE_GROUPS or first is None or then is None or first.kind != then.kind:
        return False
    return first.seconds > then.seconds + _CLOCKS_DIFFER_S


def _by_time(hit: Hit) -> tuple[bool, tuple[int, int]]:
    return hit.line.order


def _is_warning(claim: Claim, findings: Findings) -> bool:
    return claim.cause is not None and findings.book.causes[claim.cause].is_warning


def _order(claim: Claim, findings: Findings) -> tuple[bool, int, tuple[bool, tuple[int, int]]]:
    return _is_warning(claim, findings), claim.confidence.rank, _by_time(claim.first)


def _caused(
    causes: list[Claim], claims: list[Claim], explained: dict[str, str], findings: Findings
) -> Verdict:
    top, others = causes[0], causes[1:]
    assert top.cause is not None
    cause = findings.book.causes[top.cause]
    rule = top.rules[0]
    confidence = top.confidence
    rivals = [
        claim for claim in others
        if claim.confidence is Confidence.HIGH and not _is_warning(claim, findings)
    ]  # fmt: skip
    if rivals and confidence is Confidence.HIGH:
        confidence = Confidence.MEDIUM
    own_lines = {hit.line.place for hit in top.hits}
    followed = [
        claim for claim in claims if claim.key in explained and claim.first.line.place not in own_lines
    ]
    alternatives = [Alternative(cause=claim.key, why=_says(claim)) for claim in others]
    alternatives += [
        Alternative(cause=name, why=findings.book.causes[name].title)
        for rule in top.rules
        for name in rule.alternatives
        if name != top.cause
    ]
    rank, node = _culprit(top)
    return Verdict(
        cause=top.cause,
        confidence=confidence,
        title=cause.title,
        says=_filled(rule.says, top.first) if rule.says else "",
        culprit_rank=rank,
        node=node,
        evidence=_evidence(top.hits),
        consequences=_consequences(followed, findings),
        alternatives=tuple({item.cause: item for item in reversed(alternatives)}.values())[::-1],
        fix=rule.fix or cause.fix,
        collect_next=_unique((*rule.collect_next, *cause.collect_next))
        if confidence is not Confidence.HIGH
        else (),
    )


def _unexplained(
    symptoms: list[Claim], claims: list[Claim], slows: list[Claim], findings: Findings
) -> Verdict:
    """Something failed and the log does not say why."""
    guesses = [claim for claim in claims if not claim.is_symptom and claim not in slows]
    collect_next = [text for claim in symptoms for rule in claim.rules for text in rule.collect_next]
    others = [claim for claim in claims if claim.is_symptom and claim not in symptoms]
    return Verdict(
        cause=NOT_ENOUGH_INFO,
        confidence=Confidence.MEDIUM,
        title=findings.book.causes[NOT_ENOUGH_INFO].title,
        says=_says(symptoms[0]) + _reporters(symptoms[0]),
        evidence=_evidence([hit for claim in symptoms for hit in claim.hits[:3]]),
        consequences=_consequences(others, findings),
        alternatives=tuple(Alternative(cause=claim.key, why=_says(claim)) for claim in (*guesses, *slows)),
        collect_next=_unique((*collect_next, *findings.book.causes[NOT_ENOUGH_INFO].collect_next)),
    )


def _reporters(claim: Claim) -> str:
    """Who reports it; the ranks that are missing from this list are the ones to look at."""
    ranks = sorted({hit.rank for hit in claim.hits if hit.rank is not None})
    if not ranks:
        return ""
    shown = ", ".join(map(str, ranks[:_MAX_RANKS_SHOWN])) + (", …" if len(ranks) > _MAX_RANKS_SHOWN else "")
    return f" (reported by rank{'s' if len(ranks) > 1 else ''} {shown})"


def _quiet(findings: Findings) -> Verdict:
    """Nothing failed, as far as the log tells; it is called healthy only where it shows work going on."""
    healthy = [
        hit for rule in findings.book.rules if rule.role is Role.HEALTHY for hit in findings.hits(rule.id)
    ]
    cause = NO_PROBLEM_FOUND if healthy else NOT_ENOUGH_INFO
    says = "" if healthy else (
        "the log is empty" if findings.extent.num_bytes == 0 else "no line tells of failure, none of progress"
    )  # fmt: skip
    return Verdict(
        cause=cause,
        confidence=Confidence.MEDIUM,
        title=findings.book.causes[cause].title,
        says=says,
        evidence=_evidence(healthy[:2]),
        collect_next=() if healthy else findings.book.causes[cause].collect_next,
    )


def _culprit(claim: Claim) -> tuple[int | None, str | None]:
    best = claim.confidence
    sure = [hit for hit in claim.hits if hit.rule.confidence is best] or list(claim.hits)
    blamed = [(_blamed(hit), hit) for hit in sure]
    blamed += [(_blamed(hit), hit) for hit in claim.hits if hit not in sure]
    rank = next((rank for rank, _ in blamed if rank is not None), None)
    node = next((hit.node for each, hit in blamed if hit.node and each in (rank, None)), None)
    return rank, node


def _blamed(hit: Hit) -> int | None:
    match hit.rule.blames:
        case Blames.NOBODY:
            return None
        case Blames.PEER:
            named = hit.values.get("rank")
            return int(named) if isinstance(named, float) else None
        case Blames.WRITER:
            return hit.rank


def _consequences(claims: Iterable[Claim], findings: Findings) -> tuple[Consequence, ...]:
    return tuple(
        Consequence(
            what=claim.cause or claim.rules[0].says or claim.key,
            evidence=_line(claim.first),
            count=sum(findings.count(rule.id) for rule in claim.rules) or len(claim.hits),
        )
        for claim in list(claims)[:_MAX_CONSEQUENCES]
    )


def _evidence(hits: Iterable[Hit]) -> tuple[Evidence, ...]:
    found: dict[tuple[str, int], Evidence] = {}
    for hit in hits:
        found.setdefault((hit.line.place.file, hit.line.place.number), _line(hit))
        if len(found) == _MAX_EVIDENCE:
            break
    return tuple(found.values())


def _line(hit: Hit) -> Evidence:
    place = hit.line.place
    text = hit.line.shown[:_MAX_TEXT_CHARS]
    return Evidence(file=place.file, line=place.number, text=text, rank=hit.rank, node=hit.node)


def _says(claim: Claim) -> str:
    return _filled(claim.rules[0].says, claim.first) or claim.key.replace("_", " ")


def _filled(says: str, hit: Hit) -> str:
    """`{name}` in a rule's sentence is the line's number of that name; sizes in GiB. What the line does not
    have is left out, with the clause it stands in."""
    for name, value in hit.values.items():
        shown = value if isinstance(value, str) else _shown(value)
        says = says.replace("{" + name + "}", shown)
    if _UNFILLED.search(says) is None:
        return says
    clauses = [clause for clause in _CLAUSE_END.split(says) if _UNFILLED.search(clause) is None]
    return " ".join(clauses).rstrip(" ,;.") + "." if clauses else ""


def _shown(value: float) -> str:
    if value >= 1 << 20:
        return f"{value / (1 << 30):.2f} GiB"
    return f"{value:g}"


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
