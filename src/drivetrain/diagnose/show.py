"""A verdict as text for people, and the page of a cause."""

from __future__ import annotations

import textwrap

from drivetrain.diagnose.rules import Confidence, Role, Rule, RuleBook
from drivetrain.diagnose.verdict import Evidence, Verdict

_WIDTH = 100
_MAX_TEXT_CHARS = 300
_SURE = {
    Confidence.HIGH: "the log says so",
    Confidence.MEDIUM: "likely",
    Confidence.LOW: "a guess",
}


def verdict_text(verdict: Verdict) -> str:
    """The verdict: cause and culprit first, then evidence, what followed, what to do, what to collect."""
    lines = [f"{verdict.title} [{verdict.cause}, {verdict.confidence}: {_SURE[verdict.confidence]}]"]
    if verdict.says:
        lines += _wrapped(_sentence(verdict.says), "  ")
    if (where := _where(verdict)) is not None:
        lines.append(f"  began on {where}")
    for item in verdict.evidence:
        lines += _evidence(item)
    if verdict.consequences:
        lines.append("what followed:")
        for thing in verdict.consequences:
            times = f" ({thing.count} times)" if thing.count > 1 else ""
            lines.append(f"  {thing.evidence.file}:{thing.evidence.line}: {thing.what}{times}")
    if verdict.alternatives:
        lines.append("also possible:")
        lines += [f"  {item.cause}: {item.why}" for item in verdict.alternatives]
    if verdict.fix:
        lines += _wrapped(f"→ {verdict.fix}", "")
    if verdict.collect_next:
        lines.append("to know more, collect:")
        for text in verdict.collect_next:
            lines += _wrapped(f"- {text}", "  ")
    lines += [f"not read: {text}" for text in verdict.unread]
    return "\n".join(lines)


def cause_page(book: RuleBook, name: str) -> str:
    """The page of a cause, in Markdown: symptoms, proof, fix, what it may be confused with."""
    cause = book.causes[name]
    lines = [f"# {cause.title}", "", f"`{name}`", ""]
    if cause.about:
        lines += [cause.about, ""]
    rules = book.rules_of(name)
    if rules:
        lines += ["## Symptoms and proof", ""]
        lines += [f"- {_proof(rule)}" for rule in rules]
        lines.append("")
    if cause.fix:
        lines += ["## What to do", "", cause.fix, ""]
    if cause.collect_next:
        lines += ["## What to collect where the log does not decide", ""]
        lines += [f"- `{text}`" if _is_command(text) else f"- {text}" for text in cause.collect_next]
        lines.append("")
    others = sorted(set(cause.related) | {other for rule in rules for other in rule.alternatives} - {name})
    deeper = sorted(item for item in cause.follows if item in book.causes)
    if others or deeper:
        lines.append("## Related")
        lines.append("")
        lines += [f"- [{book.causes[item].title}]({item}.md)" for item in others if item in book.causes]
        lines += [
            f"- May be a consequence of: [{book.causes[item].title}]({item}.md)"
            for item in deeper
            if item not in others
        ]
        lines.append("")
    sources = sorted({rule.source for rule in rules if rule.source} | ({cause.source} - {""}))
    if sources:
        lines += ["## Sources", "", *(f"- {item}" for item in sources), ""]
    return "\n".join(lines).rstrip() + "\n"


def causes_index(book: RuleBook) -> str:
    """The list of all causes, in Markdown, by group."""
    lines = [
        "# Causes",
        "",
        "What `drivetrain diagnose` can answer. Made from `src/drivetrain/diagnose/rules`.",
        "",
    ]
    for group in sorted({cause.group for cause in book.causes.values()}):
        lines += [f"## {group.capitalize()}", ""]
        causes = sorted(
            (cause for cause in book.causes.values() if cause.group == group), key=lambda item: item.id
        )
        lines += [f"- [`{cause.id}`]({cause.id}.md): {cause.title}" for cause in causes]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _proof(rule: Rule) -> str:
    parts = [_sentence(rule.says.replace("{", "<").replace("}", ">"))] if rule.says else []
    if rule.sources:
        shown = [source if len(source) < 120 else source[:117] + "..." for source in rule.sources[:3]]
        more = f", and {len(rule.sources) - 3} more" if len(rule.sources) > 3 else ""
        parts.append(
            "Lines like " + ", ".join(f"`{text.replace('`', chr(39))}`" for text in shown) + more + "."
        )
    if rule.when is not None:
        parts.append(f"Counts where `{rule.when.source}`.")
    if rule.over_hits is not None:
        parts.append(f"Counts where, over all such lines, `{rule.over_hits.source}`.")
    if rule.needs:
        parts.append("Needs: " + ", ".join(name.replace("|", " or ") for name in rule.needs) + ".")
    if rule.unless:
        parts.append("Contradicted by: " + ", ".join(rule.unless) + ".")
    if rule.confidence is not Confidence.HIGH and rule.role is Role.CAUSE:
        parts.append(f"Confidence: {rule.confidence}.")
    return " ".join(parts)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ":")) else ".")


def _where(verdict: Verdict) -> str | None:
    parts = []
    if verdict.culprit_rank is not None:
        parts.append(f"rank {verdict.culprit_rank}")
    if verdict.node is not None:
        parts.append(verdict.node)
    return ", ".join(parts) or None


def _evidence(item: Evidence) -> list[str]:
    text = item.text if len(item.text) <= _MAX_TEXT_CHARS else item.text[: _MAX_TEXT_CHARS - 1] + "…"
    return [f"  {item.file}:{item.line}: {text}"]


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _is_command(text: str) -> bool:
    starts = (
        "nvidia-smi",
        "dmesg",
        "python ",
        "nc ",
        "ss ",
        "df ",
        "ulimit",
        "lspci",
        "ip ",
        "ssh ",
        "sacct",
    )
    return text.startswith((*starts, "sinfo", "kubectl", "pip ", "systemctl", "getent", "horovodrun"))
