"""Every key of a run file: what it takes, its default, what it is for. Errors and documentation read it."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from drivetrain.config.schema import RunConfig
from drivetrain.config.sections import Expects, Section


@dataclass(frozen=True, kw_only=True)
class FieldDoc:
    """One key. `expects` and `default` are in words; `is_open` takes any keys below it (model.kwargs)."""

    key: str
    expects: str
    default: str
    description: str
    takes_text: bool
    takes_null: bool
    takes_flag: bool
    is_open: bool
    choices: tuple[str, ...]


@cache
def field_docs() -> dict[str, FieldDoc]:
    """All keys that hold a value, by dotted name, in the order of the schema."""
    return {doc.key: doc for doc in _walk(RunConfig, "")}


@cache
def section_keys() -> dict[str, tuple[str, ...]]:
    """The keys within each section; "" is the top."""
    sections: dict[str, tuple[str, ...]] = {"": tuple(RunConfig.model_fields)}
    for name, info in RunConfig.model_fields.items():
        if (section := _section_of(info)) is not None:
            sections[name] = tuple(section.model_fields)
    return sections


def _section_of(info: FieldInfo) -> type[Section] | None:
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _walk(model: type[Section], prefix: str) -> Iterator[FieldDoc]:
    for name, info in model.model_fields.items():
        if (section := _section_of(info)) is not None:
            yield from _walk(section, f"{prefix}{name}.")
            continue
        parts = _alternatives(info.annotation)
        yield FieldDoc(
            key=f"{prefix}{name}",
            expects=_expects(info.annotation, info.metadata),
            default=_default(info),
            description=info.description or "",
            takes_text=str in parts,
            takes_null=types.NoneType in parts,
            takes_flag=bool in parts,
            is_open=any(get_origin(part) is dict for part in parts),
            choices=tuple(str(value) for part in parts for value in _literals(part)),
        )


def _default(info: FieldInfo) -> str:
    value = info.get_default(call_default_factory=True)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """The types that a union joins, without their Annotated wrappings."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(inner for part in get_args(annotation) for inner in _alternatives(part))
    return (annotation,)


def _literals(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _expects(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    for item in metadata:
        if isinstance(item, Expects):
            return item.text
    if get_origin(annotation) is Annotated:
        inner, *wrapped = get_args(annotation)
        return _expects(inner, wrapped)
    if get_origin(annotation) in (Union, types.UnionType):
        # The words that stand for themselves come last: "a whole number of at least 1, or auto".
        parts = sorted(get_args(annotation), key=lambda part: bool(_literals(part)) or part is types.NoneType)
        return ", or ".join(_expects(part) for part in parts)
    if literals := _literals(annotation):
        return literals[0] if len(literals) == 1 else f"one of {', '.join(literals)}"
    if get_origin(annotation) is dict:
        return "a mapping of names to values"
    plain = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        types.NoneType: "null",
    }
    return plain[annotation] + _bounds(metadata)


def _bounds(metadata: Sequence[Any]) -> str:
    words = {"ge": "of at least", "gt": "greater than", "le": "of at most", "lt": "below"}
    found = [
        f"{text} {getattr(item, name):g}"
        for item in metadata
        for name, text in words.items()
        if getattr(item, name, None) is not None
    ]
    return " " + " and ".join(found) if found else ""
