"""A draft is held against the schema; what pydantic finds is said in our words, each at its place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from drivetrain.config.draft import Draft, Key
from drivetrain.config.faults import ConfigErrors, Disagreement, Fault
from drivetrain.config.fields import field_docs, section_keys
from drivetrain.config.nearest import nearest_choice, nearest_key
from drivetrain.config.schema import CROSS_FIELD, RunConfig

# Finding the nearest name compares with every key: about 2 ms each, so only the first faults get one.
_MOST_HINTS = 20


def validate(draft: Draft) -> RunConfig:
    """The draft's values, checked.

    Raises:
        ConfigErrors: everything that is wrong, the draft's own faults included.
    """
    config, faults, disagreements = _try(draft)
    if faults:
        # The faulty values are left out once more, so that fields which contradict each other show too.
        wrong = {fault.key for fault in faults}
        draft.raw = _without(draft.raw, wrong)
        _, _, disagreements = _try(draft)
        disagreements = tuple(item for item in disagreements if not wrong & set(_with_sections(item.keys)))
    if draft.faults and any(not fault.key for fault in draft.faults):
        disagreements = ()  # the file could not be read to its end: what it lacks says nothing
    # What the text itself got wrong reads as null; that null is not said again.
    said = {(fault.where, fault.key) for fault in draft.faults}
    faults = [fault for fault in faults if (fault.where, fault.key) not in said]
    faults += [_place(draft, item) for item in disagreements]
    if draft.faults or faults or config is None:
        raise ConfigErrors(
            draft.source, sorted([*draft.faults, *faults], key=lambda fault: _order(fault.where))
        )
    return config


def _order(where: str) -> tuple[int, int, int]:
    """The file's faults by line and column, then those of the command line and of what is missing."""
    place = re.fullmatch(r".*:(\d+):(\d+)", where)
    return (0, int(place.group(1)), int(place.group(2))) if place else (1, 0, 0)


def _try(draft: Draft) -> tuple[RunConfig | None, list[Fault], tuple[Disagreement, ...]]:
    try:
        return RunConfig.model_validate(draft.raw), [], ()
    except ValidationError as error:
        is_unknown: dict[Key, bool] = {}
        disagreements: tuple[Disagreement, ...] = ()
        for item in error.errors(include_url=False, include_input=True):
            if item["type"] == CROSS_FIELD:
                disagreements = item["ctx"]["faults"]
                continue
            key = _key_of(item["loc"])
            # A union reports one error a member: one of them, in our words, is enough.
            is_unknown.setdefault(key, item["type"] == "extra_forbidden")
        return None, _explained(draft, is_unknown), disagreements


def _key_of(location: tuple[int | str, ...]) -> Key:
    """The field that pydantic's location lies in, without union members, list places, open fields' keys."""
    first, *rest = (str(part) for part in location)
    return (first, rest[0]) if first in section_keys() and rest else (first,)


def _explained(draft: Draft, is_unknown: dict[Key, bool]) -> list[Fault]:
    """A fault for each key, in reading order; the first ones with the nearest right name."""

    def place(key: Key) -> tuple[int, int, int]:
        return _order(_where(draft.key_places if is_unknown[key] else draft.value_places, key))

    return [
        _explain(draft, key, is_unknown=is_unknown[key], hints=number < _MOST_HINTS)
        for number, key in enumerate(sorted(is_unknown, key=place))
    ]


def _explain(draft: Draft, key: Key, *, is_unknown: bool, hints: bool) -> Fault:
    dotted = ".".join(key)
    if is_unknown:
        match = nearest_key(dotted) if hints else None
        hint = f"; did you mean {match}?" if match else ""
        return Fault(where=_where(draft.key_places, key), key=dotted, found=f"there is no such key{hint}")
    place = _where(draft.value_places, key)
    value = _value_at(draft.raw, key)
    if dotted in section_keys():
        keys = ", ".join(section_keys()[dotted])
        return Fault(where=place, key=dotted, found=f"{_show(value)} is not a section; its keys are {keys}")
    hint = _value_hint(value, dotted) if hints else ""
    return Fault(where=place, key=dotted, found=f"{_show(value)} is not {field_docs()[dotted].expects}{hint}")


def _value_hint(value: object, dotted: str) -> str:
    doc = field_docs()[dotted]
    choices = doc.choices
    if dotted == "strategy":
        choices = tuple(doc.expects.removeprefix("one of ").split(", "))
    if isinstance(value, str) and doc.takes_flag and value.lower() in ("yes", "on", "no", "off"):
        return f"; write {'true' if value.lower() in ('yes', 'on') else 'false'}"
    if isinstance(value, str) and (match := nearest_choice(value, choices)):
        return f"; did you mean {match}?"
    if doc.takes_text and isinstance(value, int | float):
        return "; write it in quotes"
    return ""


def _show(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _value_at(raw: dict[str, Any], key: Key) -> object:
    value: Any = raw
    for part in key:
        value = value[part]
    return value


def _where(places: dict[Key, str], key: Key) -> str:
    return places.get(key, "")


def _place(draft: Draft, item: Disagreement) -> Fault:
    """A disagreement stands at the first of its fields that was written at all."""
    written = (draft.value_places.get(tuple(key.split(".")), "") for key in item.keys)
    return Fault(where=next((place for place in written if place), ""), key="", found=str(item))


def _without(raw: dict[str, Any], wrong: set[str], prefix: str = "") -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in raw.items():
        dotted = f"{prefix}{name}"
        if dotted in wrong:
            continue
        kept[name] = _without(value, wrong, f"{dotted}.") if isinstance(value, dict) and not prefix else value
    return kept


def _with_sections(keys: Sequence[str]) -> tuple[str, ...]:
    return (*keys, *(key.split(".")[0] for key in keys if "." in key))
