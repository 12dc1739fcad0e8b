"""Reads rule files: the package's own and a user's."""

from __future__ import annotations

import contextlib
import difflib
import functools
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from drivetrain.diagnose.literals import required_texts
from drivetrain.diagnose.quantities import Expression
from drivetrain.diagnose.rules import (
    Blames,
    Cause,
    Confidence,
    Finder,
    Role,
    Rule,
    RuleBook,
    compile_pattern,
    unknown_names,
)
from drivetrain.spec.errors import InputError

_FILE_KEYS = {"causes", "rules", "numbers"}
_CAUSE_KEYS = {"title", "group", "about", "fix", "collect_next", "follows", "related", "is_warning", "source"}
_RULE_KEYS = {
    "id", "cause", "role", "match", "says", "lines", "find", "let", "when", "over_hits", "differs", "varies",
    "needs", "unless", "follows", "or", "computed", "confidence", "blames", "names_rank", "fix",
    "collect_next", "source",
}  # fmt: skip


def load_rules(extra: Sequence[Path] = ()) -> RuleBook:
    """The package's rules, and those of `extra`; a rule or cause of the same id replaces the former.

    Raises:
        InputError: a file cannot be read, or something in it is wrong; all faults of a file are named.
    """
    book = _own_rules()
    for path in extra:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--rules {path}", f"cannot be read: {error}", "check the path") from error
        book = _join(book, _read(text, str(path), check=True), str(path))
    return book


@functools.cache
def _own_rules() -> RuleBook:
    files = sorted(
        (
            item
            for item in resources.files(__package__).joinpath("rules").iterdir()
            if item.name.endswith(".yaml")
        ),
        key=lambda item: item.name,
    )
    book = RuleBook({}, ())
    parts = [_read(item.read_text(encoding="utf-8"), item.name, check=False) for item in files]
    causes = {name: cause for part in parts for name, cause in part.causes.items()}
    rules = tuple(rule for part in parts for rule in part.rules)
    return _join(book, RuleBook(causes, rules), "rules")


def _join(book: RuleBook, new: RuleBook, file: str) -> RuleBook:
    replaced = {rule.id for rule in new.rules}
    rules = (*(rule for rule in book.rules if rule.id not in replaced), *new.rules)
    causes = {**book.causes, **new.causes}
    for rule in new.rules:
        if rule.cause is not None and rule.cause not in causes:  # a user's own, described by its rule alone
            causes[rule.cause] = Cause(
                id=rule.cause, title=rule.says or rule.cause.replace("_", " "), fix=rule.fix
            )
    joined = RuleBook(causes, rules)
    wrong = [
        f"{owner} refers to {name!r}, which is no rule, cause or group"
        for owner, name in unknown_names(joined)
    ]
    if wrong:
        raise _faults(file, wrong)
    return joined


def _read(text: str, file: str, *, check: bool) -> RuleBook:
    import yaml

    # The C loader is ten times as fast; it is missing where libyaml was, when pyyaml was built.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        raw = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise _faults(file, [f"no YAML: {error}"]) from error
    faults: list[str] = []
    if not isinstance(raw, dict):
        raise _faults(file, ["the file must be a mapping with the keys rules and causes"])
    _check_keys(raw, _FILE_KEYS, "the file", faults)
    causes: dict[str, Cause] = {}
    for name, item in _mapping(raw.get("causes"), "causes", faults).items():
        with _collecting(faults, f"cause {name}"):
            causes[name] = _cause(name, item)
    rules: list[Rule] = []
    listed = raw.get("rules") or []
    if not isinstance(listed, list):
        faults.append("rules must be a list")
        listed = []
    for item in listed:
        with _collecting(faults, f"rule {item.get('id', '?')}" if isinstance(item, dict) else "a rule"):
            rules.append(_rule(item, check=check))
    twice = {rule.id for rule in rules if sum(other.id == rule.id for other in rules) > 1}
    faults += [f"rule {name} is there twice" for name in sorted(twice)]
    if faults:
        raise _faults(file, faults)
    return RuleBook(causes, tuple(rules))


@contextlib.contextmanager
def _collecting(faults: list[str], where: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        faults.append(f"{where}: {error}")


def _cause(name: str, item: Any) -> Cause:
    raw = _checked(item, _CAUSE_KEYS)
    return Cause(
        id=name,
        title=_text(raw, "title") or name.replace("_", " "),
        group=_text(raw, "group") or "other",
        about=_text(raw, "about"),
        fix=_text(raw, "fix"),
        collect_next=_texts(raw, "collect_next"),
        follows=frozenset(_texts(raw, "follows")),
        related=_texts(raw, "related"),
        is_warning=bool(raw.get("is_warning", False)),
        source=_text(raw, "source"),
    )


def _rule(item: Any, *, check: bool) -> Rule:
    raw = _checked(item, _RULE_KEYS)
    if not raw.get("id"):
        raise ValueError("needs the key id")
    if bool(raw.get("match")) == bool(raw.get("computed")):
        raise ValueError("needs the key match")  # `computed` is for the package's own code
    cause = raw.get("cause")
    role = Role(raw.get("role", "cause"))
    if (cause is None) == (role is Role.CAUSE):
        raise ValueError("needs a cause, or else a role: symptom, fact or healthy")
    sources = _texts(raw, "match")
    if check:
        for source in sources:
            compile_pattern(source)
    texts = tuple(
        dict.fromkeys(text for source in sources for text in required_texts(_without_names(source)))
    )
    return Rule(
        id=_text(raw, "id"),
        role=role,
        cause=cause,
        sources=sources,
        texts=texts,
        says=_text(raw, "says"),
        num_lines=int(raw.get("lines", 1)),
        find={name: _finder(value) for name, value in (raw.get("find") or {}).items()},
        let={name: Expression(str(value)) for name, value in (raw.get("let") or {}).items()},
        when=_expression(raw, "when"),
        over_hits=_expression(raw, "over_hits"),
        differs=_text(raw, "differs"),
        varies=_text(raw, "varies"),
        needs=_texts(raw, "needs"),
        unless=_texts(raw, "unless"),
        follows=frozenset(_texts(raw, "follows")),
        alternatives=_texts(raw, "or"),
        confidence=Confidence(raw.get("confidence", "high")),
        blames=Blames(raw.get("blames", "writer")),
        names_rank=bool(raw.get("names_rank", False)),
        fix=_text(raw, "fix"),
        collect_next=_texts(raw, "collect_next"),
        source=_text(raw, "source"),
    )


def _without_names(pattern: str) -> str:
    return pattern.replace("{size}", "(?:)").replace("{number}", "(?:)")


def _finder(value: Any) -> Finder:
    if isinstance(value, dict):
        if set(value) != {"sum"}:
            raise ValueError("find: a pattern, or sum: PATTERN")
        return Finder(pattern=compile_pattern(str(value["sum"])), adds_up=True)
    return Finder(pattern=compile_pattern(str(value)))


def _expression(raw: Mapping[str, Any], key: str) -> Expression | None:
    return Expression(str(raw[key])) if raw.get(key) is not None else None


def _checked(item: Any, keys: set[str]) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise TypeError("must be a mapping")
    faults: list[str] = []
    _check_keys(item, keys, "it", faults)
    if faults:
        raise ValueError("; ".join(faults))
    return item


def _check_keys(item: Mapping[Any, Any], keys: set[str], where: str, faults: list[str]) -> None:
    for key in item:
        if key not in keys:
            near = difflib.get_close_matches(str(key), keys, n=1)
            faults.append(
                f"{where} has the unknown key {key!r}" + (f"; did you mean {near[0]}?" if near else "")
            )


def _mapping(value: Any, name: str, faults: list[str]) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        faults.append(f"{name} must be a mapping")
        return {}
    return value


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key, "")
    if not isinstance(value, str):
        raise TypeError(f"{key} must be text")
    return " ".join(value.split()) if key != "match" else value


def _texts(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = raw.get(key) or ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise TypeError(f"{key} must be text or a list of texts")
    return tuple(items)


def _faults(file: str, faults: Sequence[str]) -> InputError:
    return InputError(f"rules of {file}", "; ".join(faults), "docs/how-to/diagnose-rules.md shows the form")
