"""Events to lines of strict JSON and back. NaN and infinities travel as strings, which JSON itself lacks."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from drivetrain.spec.unknown import Unknown
from drivetrain.telemetry.events import EVENT_TYPES, Event

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_STAMPS = ("rank", "mono_s", "wall_s")


def to_line(event: Event, *, rank: int, mono_s: float, wall_s: float) -> str:
    """One line, newline included. The kind comes first, so that readers can skip a line without parsing it.

    Raises:
        TypeError: a field holds something that is neither a plain value nor a collection of such.
    """
    payload: dict[str, Any] = {
        "kind": event.kind,
        "rank": rank,
        "mono_s": round(mono_s, 6),
        "wall_s": round(wall_s, 6),
    }
    for name in _own_fields(event.kind):
        try:
            payload[name] = _plain(getattr(event, name))
        except TypeError as error:
            raise TypeError(f"{type(event).__name__}.{name}: {error}") from error
    return json.dumps(payload, separators=(",", ":"), allow_nan=False) + "\n"


def from_line(line: str | bytes) -> Event | None:
    """The event in `line`, or None where its kind is not known (a later schema's).

    Raises:
        ValueError: torn or malformed: no JSON object, a missing field, a value of another type.
    """
    raw = json.loads(line)
    if not isinstance(raw, dict):
        raise ValueError(f"an event is a JSON object, this is a {type(raw).__name__}")
    event_type = EVENT_TYPES.get(str(raw.get("kind")))
    if event_type is None:
        return None
    values = {name: decode(raw[name]) for name, decode in _decoders(event_type.kind).items() if name in raw}
    try:
        return event_type(**values)
    except TypeError as error:
        raise ValueError(f"{event_type.kind} event: {error}") from error


@functools.cache
def _own_fields(kind: str) -> tuple[str, ...]:
    return tuple(item.name for item in dataclasses.fields(EVENT_TYPES[kind]) if item.name not in _STAMPS)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, str):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Unknown):
        return None
    raise TypeError(f"{type(value).__name__} is no plain value; convert it before writing")


@functools.cache
def _decoders(kind: str) -> dict[str, Callable[[Any], Any]]:
    event_type = EVENT_TYPES[kind]
    hints = typing.get_type_hints(event_type)
    return {item.name: _decoder(hints[item.name]) for item in dataclasses.fields(event_type)}


def _decoder(hint: Any) -> Callable[[Any], Any]:
    """The function that turns JSON's value into one of type `hint`, or raises ValueError."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        inner = _decoder(next(argument for argument in arguments if argument is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        item = _decoder(arguments[0])
        return lambda value: tuple(item(entry) for entry in _of_type(value, list))
    if origin is dict:
        return functools.partial(_decode_dict, arguments[0], _decoder(arguments[1]))
    if hint is float:
        return _number
    return lambda value: _of_type(value, hint)


def _decode_dict(key_type: type[str], decode: Callable[[Any], Any], value: Any) -> dict[str, Any]:
    entries = _of_type(value, dict).items()
    if issubclass(key_type, StrEnum):
        known = set(key_type)  # a part that a later version added is not one we can name
        return {key_type(key): decode(entry) for key, entry in entries if key in known}
    return {key: decode(entry) for key, entry in entries}


def _number(value: Any) -> float:
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _of_type(value: Any, wanted: type[Any]) -> Any:
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise ValueError(f"{value!r} is no {wanted.__name__}")
    return value
