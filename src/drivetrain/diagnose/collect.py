"""Which rules match a log, where, how often, with what numbers. Bounded, however long the log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from drivetrain.diagnose.lines import Line
from drivetrain.diagnose.prefilter import ONE_IN, Prefilter, owners_by_text
from drivetrain.diagnose.quantities import Value, value_of
from drivetrain.diagnose.rules import Rule, RuleBook
from drivetrain.diagnose.scan import Extent, Found, Source, scan

_MAX_WRITERS = 4096
"""Of more ranks and processes than this, a rule keeps no separate tracks."""
_ENOUGH = 20_000
"""Matches of a rule after which it gets only a sample of its lines."""
_ENOUGH_TRIES = 4_000
"""Lines with one text of a statistical rule, matching or not, after which it gets only a sample of them."""


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A line that a rule matches. `rank` and `node`: who wrote it, or whom it names, as far as it says."""

    rule: Rule
    line: Line
    values: Mapping[str, Value]
    rank: int | None
    node: str | None


@dataclass(kw_only=True)
class Track:
    """The matches of one rule by one writer."""

    first: Hit
    last: Hit
    count: int = 0
    numbers: dict[str, _Series] = field(default_factory=dict)

    def values(self) -> dict[str, Value]:
        """What `over_hits` can refer to."""
        found: dict[str, Value] = {"count": float(self.count)}
        for name, series in self.numbers.items():
            found |= {
                f"first_{name}": series.first, f"last_{name}": series.last, f"min_{name}": series.low,
                f"max_{name}": series.high, f"mean_{name}": series.total / series.count,
                f"run_{name}": float(series.best_run), f"growth_{name}": series.best_growth,
            }  # fmt: skip
        return found


@dataclass(kw_only=True)
class _Series:
    first: float
    last: float
    low: float
    high: float
    total: float = 0.0
    count: int = 0
    best_run: int = 0
    best_growth: float = 1.0
    _run: int = 0
    _run_start: float | None = None

    def add(self, value: float) -> None:
        if self._run_start is None or value < self.last:
            self._run, self._run_start = 0, value
        self._run += value > self.last
        if self._run > self.best_run:
            self.best_run = self._run
            self.best_growth = value / self._run_start if self._run_start > 0 else 1.0
        self.last = value
        self.low, self.high = min(self.low, value), max(self.high, value)
        self.total += value
        self.count += 1


@dataclass(kw_only=True)
class Findings:
    """All that was found. `tracks` holds, of each rule that matched, its matches by writer."""

    book: RuleBook
    tracks: dict[str, dict[tuple[int | None, str | None, int | None], Track]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    extent: Extent = field(default_factory=Extent)
    unread: list[str] = field(default_factory=list)
    values: dict[str, dict[Value, Value]] = field(default_factory=dict)
    _ranks: dict[tuple[str | None, int], tuple[float, int]] = field(default_factory=dict)

    def hits(self, rule: str) -> tuple[Hit, ...]:
        """The first match of each writer, in the log's order; with `over_hits` the last."""
        over = self.book.by_id[rule].over_hits
        if not self._differ(self.book.by_id[rule]):
            return ()
        found = []
        for track in self.tracks.get(rule, {}).values():
            if over is None:
                found.append(self._with_rank(track.first))
            elif over.holds(track.values()):
                found.append(self._with_rank(track.last))
        return tuple(sorted(found, key=lambda hit: hit.line.order))

    def count(self, rule: str) -> int:
        return self.counts.get(rule, 0)

    def _differ(self, rule: Rule) -> bool:
        if rule.varies:
            return len(self.values.get(rule.id, ())) > 1
        if rule.differs:
            ranks = self.values.get(rule.id, {})
            return len(ranks) > 1 and len(set(ranks.values())) > 1
        return True

    def _with_rank(self, hit: Hit) -> Hit:
        line = hit.line
        if hit.rank is not None or line.pid is None or (line.node, line.pid) not in self._ranks:
            return hit
        return replace(hit, rank=self._ranks[line.node, line.pid][1])

    def learn_rank(self, hit: Hit) -> None:
        """NCCL says which rank a process is. Of several communicators the largest counts: the world's."""
        pid, size = hit.line.pid, hit.values.get("size", 0.0)
        if pid is None or hit.rank is None or not isinstance(size, float):
            return
        key = (hit.line.node, pid)
        if key in self._ranks or len(self._ranks) < _MAX_WRITERS:
            self._ranks[key] = max(
                self._ranks.get(key, (-1.0, 0)), (size, hit.rank), key=lambda known: known[0]
            )


def collect(sources: Iterable[Source], book: RuleBook) -> Findings:
    """Reads each source once. One that cannot be read is named in `unread`; the others still count."""
    findings = Findings(book=book)
    search = _Search(book)
    for order, source in enumerate(sources):
        try:
            for found in scan(source, search.prefilter, file_order=order, extent=findings.extent):
                search.match(found, findings)
        except OSError as error:
            findings.unread.append(f"{source.name}: {error.strerror or error}")
    return findings


class _Search:
    """Matches the lines that hold a text of a rule, and sees to it that no flood of lines is read in full.

    What the prefilter calls an owner is a rule's text: where one text of a rule floods, its others do not.
    """

    def __init__(self, book: RuleBook) -> None:
        self._rules = [(rule, text) for rule in book.rules for text in rule.texts]
        self._owners: dict[str, list[int]] = {}
        for owner, (rule, _) in enumerate(self._rules):
            self._owners.setdefault(rule.id, []).append(owner)
        self._tries = [0] * len(self._rules)
        self._satiated: set[int] = set()
        self.prefilter = Prefilter(
            owners_by_text((text, owner) for owner, (_, text) in enumerate(self._rules))
        )

    def match(self, found: Found, findings: Findings) -> None:
        rules: dict[str, Rule] = {}
        for owner in found.owners:
            rule = self._rules[owner][0]
            if owner in self._satiated:
                # Another rule still wants this text, so the prefilter gives it.
                self._tries[owner] += 1
                if self._tries[owner] % ONE_IN:
                    continue
            rules[rule.id] = rule
            if rule.is_statistical and owner not in self._satiated:
                self._tries[owner] += 1
                if self._tries[owner] == _ENOUGH_TRIES:
                    self._satiate([owner])
        for rule in rules.values():
            hit = match_rule(rule, found)
            if hit is not None:
                self._count(rule, findings)
                _keep(hit, findings)

    def _count(self, rule: Rule, findings: Findings) -> None:
        findings.counts[rule.id] = count = findings.count(rule.id) + 1
        if count == _ENOUGH:
            self._satiate(self._owners[rule.id])

    def _satiate(self, owners: Iterable[int]) -> None:
        for owner in owners:
            self._satiated.add(owner)
            self.prefilter.satiate(owner)


def match_rule(rule: Rule, found: Found) -> Hit | None:
    """The match of `rule` in this line (and those after it, where it reads several), if its numbers hold."""
    match = _search(rule, found)
    text = ""
    if rule.num_lines > 1 and (match is not None or rule.needs_all_lines):
        text = _joined(rule, found.line.text, found.following[: rule.num_lines - 1])
        match = match or next((match for pattern in rule.patterns if (match := pattern.search(text))), None)
    if match is None:
        return None
    line = found.line
    text = text or line.text
    values: dict[str, Value] = {
        name: value_of(value) for name, value in match.groupdict().items() if value is not None
    }
    for name, finder in rule.find.items():
        numbers = [value_of(found["v"]) for found in finder.pattern.finditer(text)]
        if finder.adds_up:
            values[name] = sum(number for number in numbers if isinstance(number, float))
        elif numbers:
            values[name] = numbers[0]
    for name, expression in rule.let.items():
        value = expression.value(values)
        if value is not None:
            values[name] = value
    if rule.when is not None and not rule.when.holds(values):
        return None
    return Hit(
        rule=rule,
        line=line,
        values=values,
        rank=_rank(line, match),
        node=match.groupdict().get("node") or line.node,
    )


def _search(rule: Rule, found: Found) -> re.Match[str] | None:
    """First on the line as it stands, since taking it apart costs more than most lines are worth."""
    for pattern in rule.patterns:
        text = found.line.text if pattern.pattern.startswith("^") else found.raw
        if (match := pattern.search(text)) is not None:
            return match if text is not found.raw else pattern.search(found.line.text) or match
    return None


def _rank(line: Line, match: re.Match[str]) -> int | None:
    named = match.groupdict().get("rank")
    return int(named) if named is not None and named.isdigit() else line.rank


def _joined(rule: Rule, text: str, following: Iterable[str]) -> str:
    """Up to the next line that is itself a match: that is another process's message."""
    parts = [text]
    for part in following:
        if any(pattern.search(part) for pattern in rule.patterns):
            break
        parts.append(part)
    return " ".join(parts)


def _compare(hit: Hit, findings: Findings) -> None:
    """Of rules that compare ranks (or lines): the first value of each rank (or each value)."""
    name = hit.rule.differs or hit.rule.varies
    value = hit.values.get(name)
    key = value if hit.rule.varies else hit.rank
    seen = findings.values.setdefault(hit.rule.id, {})
    if value is not None and key is not None and len(seen) < _MAX_WRITERS:
        seen.setdefault(key, value)


def _keep(hit: Hit, findings: Findings) -> None:
    if hit.rule.names_rank:
        findings.learn_rank(hit)
    if hit.rule.differs or hit.rule.varies:
        _compare(hit, findings)
    tracks = findings.tracks.setdefault(hit.rule.id, {})
    key = (hit.rank, hit.node, hit.line.pid)
    if key not in tracks:
        if len(tracks) >= _MAX_WRITERS:
            key = next(iter(tracks))
        else:
            tracks[key] = Track(first=hit, last=hit)
    track = tracks[key]
    track.count += 1
    track.last = hit
    if hit.rule.over_hits is None:
        return
    for name, value in hit.values.items():
        if isinstance(value, float):
            series = track.numbers.get(name)
            if series is None:
                track.numbers[name] = series = _Series(first=value, last=value, low=value, high=value)
            series.add(value)
