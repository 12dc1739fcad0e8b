"""The raw values of a run file and its overrides, with their places, before they are validated."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivetrain.config.faults import Fault
from drivetrain.config.fields import field_docs, section_keys
from drivetrain.config.marked_yaml import Mark, read_marked
from drivetrain.config.overrides import Override
from drivetrain.spec.errors import InputError

Key = tuple[str, ...]

_MOST_BYTES = 4 * 2**20


@dataclass
class Draft:
    """What was written, and where: `key_places` and `value_places` say it of every dotted key, split."""

    source: str
    raw: dict[str, Any] = field(default_factory=dict)
    key_places: dict[Key, str] = field(default_factory=dict)
    value_places: dict[Key, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


def read_file(path: Path) -> Draft:
    draft = Draft(source=str(path))
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        found = f"byte {error.object[error.start]:#04x} in line {line} is not UTF-8"
        raise InputError(f"run file {path}", found, "save the file as UTF-8") from error
    except OSError as error:
        found = f"it cannot be read: {error.strerror}"
        raise InputError(f"run file {path}", found, "check its permissions") from error
    if len(content) > _MOST_BYTES:
        found = f"it is larger than {_MOST_BYTES // 1024} KiB, which no run file is"
        raise InputError(f"run file {path}", found, "check the path")
    tree = read_marked(text)

    def at(mark: Mark | None) -> str:
        return f"{path}:{mark}" if mark else str(path)

    draft.faults += [Fault(where=at(item.mark), key=item.key, found=item.found) for item in tree.faults]
    draft.key_places = {key: at(mark) for key, mark in tree.keys.items()}
    draft.value_places = {key: at(mark) for key, mark in tree.values.items()}
    if isinstance(tree.value, dict):
        # A section whose keys are all commented out reads as null: it asks for the defaults.
        empty = {name for name in section_keys() if name and tree.value.get(name, "") is None}
        draft.raw = {key: value for key, value in tree.value.items() if key not in empty}
    elif not draft.faults:
        found = "the file is empty" if tree.value is None else "the file is not a mapping of keys to values"
        draft.faults.append(
            Fault(where=str(path), key="", found=f"{found}; it needs lines such as `global_batch: 256`")
        )
    return draft


def apply(draft: Draft, override: Override) -> None:
    """Sets one value; an unknown key is put into the tree all the same, for the validator to report."""
    key = tuple(override.key.split("."))
    name = override.key
    if name in section_keys():
        keys = ", ".join(f"{name}.{item}" for item in section_keys()[name])
        _fault(draft, override, f"this is a section; set one of its keys: {keys}")
        return
    value, problem = _read_value(override)
    if problem:
        _fault(draft, override, problem)
        return
    node = draft.raw
    for depth, part in enumerate(key[:-1], start=1):
        inner = node.setdefault(part, {})
        if not isinstance(inner, dict):
            above = ".".join(key[:depth])
            # A section that the file gave no keys is reported at the file's place.
            if above not in section_keys():
                _fault(draft, override, f"{above} is a value and has no keys of its own")
            return
        # An unknown section is reported by its own name, at the place of its first key.
        draft.key_places.setdefault(key[:depth], override.where)
        draft.value_places.setdefault(key[:depth], override.where)
        node = inner
    node[key[-1]] = value
    draft.key_places[key] = draft.value_places[key] = override.where


def _fault(draft: Draft, override: Override, found: str) -> None:
    draft.faults.append(Fault(where=override.where, key=override.key, found=found))


def _read_value(override: Override) -> tuple[Any, str | None]:
    """The override's value, or what is wrong with its text."""
    doc = field_docs().get(override.key)
    if override.text is None:
        if doc is None or doc.takes_flag:
            return True, None
        return None, f"a value is missing; it takes {doc.expects}"
    if doc is not None and doc.takes_text:
        is_null = doc.takes_null and override.text in ("null", "~", "")
        return (None if is_null else override.text), None
    tree = read_marked(override.text)
    if tree.faults:
        return None, f"{override.text!r}: {tree.faults[0].found}"
    return tree.value, None


def default_name(draft: Draft, path: Path | None) -> None:
    """A run without a name takes its file's, or its task's."""
    if "name" in draft.raw:
        return
    task = draft.raw.get("task")
    stem = ""
    if path is not None:
        stem = path.stem
    elif isinstance(task, str):
        stem = (
            Path(task.rpartition(":")[0]).stem
            if task.rpartition(":")[0].endswith(".py")
            else task.split(":")[0]
        )
    stem = re.sub(r"[^\w.-]+", "-", stem).lstrip(".-")
    if stem:
        draft.raw["name"] = stem
