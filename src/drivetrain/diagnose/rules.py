"""Causes and rules: their form. `docs/how-to/diagnose-rules.md` explains it to those who write rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from drivetrain.diagnose.quantities import NUMBER, SIZE, Expression

NOT_ENOUGH_INFO = "not_enough_info"
NO_PROBLEM_FOUND = "no_problem_found"


class Role(StrEnum):
    """What a match means."""

    CAUSE = "cause"  # names why it failed
    SYMPTOM = "symptom"  # an error that some cause brought about, without naming it
    FACT = "fact"  # for other rules to refer to
    HEALTHY = "healthy"  # normal work


class Confidence(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"

    @property
    def rank(self) -> int:
        """0 for high."""
        return list(Confidence).index(self)


class Blames(StrEnum):
    """Whose fault a line tells of: that of the rank that wrote it, of another, or of none."""

    WRITER = "writer"
    PEER = "peer"
    NOBODY = "nobody"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A reason for a failure.

    Attributes:
        follows: causes, rules, groups ("@hardware") or "@any" that may have brought this one about.
        is_warning: it does not end a job, so any failure goes before it.
    """

    id: str
    title: str
    group: str = "other"
    about: str = ""
    fix: str = ""
    collect_next: tuple[str, ...] = ()
    follows: frozenset[str] = frozenset()
    related: tuple[str, ...] = ()
    is_warning: bool = False
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Finder:
    """A number to look for anywhere in a line. With `adds_up`, all that are found are added."""

    pattern: re.Pattern[str]
    adds_up: bool = False


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What one kind of line says.

    Attributes:
        sources: the regular expressions, one of which must match; compiled when first needed.
        texts: a line without any of these (lower case) cannot match.
        num_lines: so many lines are read as one, for messages that loggers break.
        find, let, when: numbers of the line, what is computed from them, and the condition on them.
        over_hits: a condition on all matches of one writer (count, first_x, last_x, min_x, max_x, mean_x,
            run_x and growth_x: the rises, and last over first, of the longest stretch without a fall).
        differs: it counts only where two ranks give different first values of this name; `varies`: where two
            lines do, whoever wrote them.
        needs, unless: rules (or causes) that must, or must not, have matched somewhere; "a|b" is one of both.
        names_rank: the line tells which rank its process is.
    """

    id: str
    role: Role
    sources: tuple[str, ...]
    texts: tuple[str, ...]
    cause: str | None = None
    says: str = ""
    num_lines: int = 1
    find: Mapping[str, Finder] = field(default_factory=dict)
    let: Mapping[str, Expression] = field(default_factory=dict)
    when: Expression | None = None
    over_hits: Expression | None = None
    differs: str = ""
    varies: str = ""
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    follows: frozenset[str] = frozenset()
    alternatives: tuple[str, ...] = ()
    confidence: Confidence = Confidence.HIGH
    blames: Blames = Blames.WRITER
    names_rank: bool = False
    fix: str = ""
    collect_next: tuple[str, ...] = ()
    source: str = ""

    @property
    def is_statistical(self) -> bool:
        """Whether it sums up lines that healthy logs are full of, so that a sample of them is enough."""
        sums_up = self.over_hits is not None and self.role is not Role.FACT
        return self.role is Role.HEALTHY or self.names_rank or sums_up

    @property
    def needs_all_lines(self) -> bool:
        """Whether a match may stretch over the line's end, not only its numbers."""
        return self.num_lines > 1 and not self.find

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        # A few hundred expressions take half a second; most logs need a dozen of them.
        return tuple(compile_pattern(source) for source in self.sources)


@dataclass(frozen=True)
class RuleBook:
    """All causes and rules in force."""

    causes: Mapping[str, Cause]
    rules: tuple[Rule, ...]

    @cached_property
    def by_id(self) -> Mapping[str, Rule]:
        return {rule.id: rule for rule in self.rules}

    def rules_of(self, cause: str) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.cause == cause)

    def may_follow(self, rule: Rule) -> frozenset[str]:
        """The ids of all causes and rules that may have brought about what `rule` tells of."""
        named = rule.follows | (self.causes[rule.cause].follows if rule.cause else frozenset())
        if rule.role is Role.SYMPTOM and not named:
            named = frozenset({"@any"})
        found: set[str] = set()
        for name in named:
            if name.startswith("@"):
                group = name[1:]
                found |= {cause.id for cause in self.causes.values() if group in ("any", cause.group)}
            else:
                found.add(name)
        return frozenset(found - {rule.cause, rule.id})


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Case does not matter; `{size}` and `{number}` stand for what `quantities` says.

    Raises:
        ValueError: not a regular expression.
    """
    filled = pattern.replace("{size}", f"(?:{SIZE})").replace("{number}", f"(?:{NUMBER})")
    try:
        return re.compile(filled, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error


def unknown_names(book: RuleBook) -> Iterable[tuple[str, str]]:
    """(rule or cause, name that it refers to) for each name that stands for nothing in `book`."""
    groups = {f"@{cause.group}" for cause in book.causes.values()} | {"@any"}
    known = {*book.causes, *book.by_id, *groups}
    for rule in book.rules:
        needed = (name for names in rule.needs for name in names.split("|"))
        for name in (*needed, *rule.unless, *rule.follows, *rule.alternatives):
            if name not in known:
                yield rule.id, name
    for cause in book.causes.values():
        for name in (*cause.follows, *cause.related):
            if name not in known:
                yield cause.id, name
