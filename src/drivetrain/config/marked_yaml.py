"""YAML read with the place of every key and value, by YAML 1.2's rules for scalars.

PyYAML's own rules are YAML 1.1's: `off` is false there, `1e-3` is text and `1:2` is 62.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str, ...]
"""Keys from the top of the file down to a value."""

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
# Longer ones are no number of anything, and Python refuses to print them.
_INT = re.compile(r"[-+]?[0-9]{1,400}|0o[0-7]{1,400}|0x[0-9a-fA-F]{1,300}")
FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)


def _int(text: str) -> int:
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


def _float(text: str) -> float:
    word = text.lower()
    return float(word.replace(".", "", 1) if word.endswith(("inf", "nan")) else word)


_READERS: dict[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    "null": (_NULL, lambda _: None),
    "bool": (_BOOL, lambda text: text.lower() == "true"),
    "int": (_INT, _int),
    "float": (FLOAT, _float),
}


# A run file has some hundred. Without a bound, a few aliases of aliases stand for billions.
MOST_NODES = 10_000


class _TooMany(Exception):  # noqa: N818  caught within this module
    """The text has more nodes than MOST_NODES; carries the place of the first one too many."""

    def __init__(self, mark: yaml.Mark) -> None:
        super().__init__(mark)
        self.mark = mark


class _Loader(yaml.SafeLoader):
    """SafeLoader's parser with YAML 1.2's core schema for plain scalars, which gives up on huge texts."""

    num_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.num_nodes += 1
        if self.num_nodes > MOST_NODES:
            raise _TooMany(self.get_mark())
        return super().compose_node(parent, index)


# Emptied, as the parent's are YAML 1.1's.
_Loader.yaml_implicit_resolvers = {}


for _tag, (_pattern, _) in _READERS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern.pattern})$"), None)


@dataclass(frozen=True)
class Mark:
    """A place in a text, counted from 1 as editors do."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


@dataclass(frozen=True, kw_only=True)
class TextFault:
    """Something that is wrong with the text itself, at a place in it (None: the whole text)."""

    mark: Mark | None
    key: str
    found: str


@dataclass
class MarkedTree:
    """A text's values, the places of its keys and values, and the faults found on the way."""

    value: Any = None
    keys: dict[Path, Mark] = field(default_factory=dict)
    values: dict[Path, Mark] = field(default_factory=dict)
    faults: list[TextFault] = field(default_factory=list)
    num_nodes: int = 0


def read_marked(text: str) -> MarkedTree:
    """Reads one YAML document. Syntax errors and duplicate keys are in the tree's `faults`, never raised."""
    tree = MarkedTree()
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is not None:
            tree.value = _construct(node, (), tree, ())
    except RecursionError:
        tree.faults.append(TextFault(mark=None, key="", found="nested too deeply to be a run file"))
    except _TooMany as error:
        found = f"more than {MOST_NODES:,} keys and values, aliases counted as what they stand for"
        tree = MarkedTree(faults=[TextFault(mark=_mark(error.mark), key="", found=found)])
    except yaml.YAMLError as error:
        tree.faults.append(_syntax_fault(error, text))
    return tree


def _mark(mark: yaml.Mark) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)


def _construct(node: yaml.Node, path: Path, tree: MarkedTree, above: tuple[int, ...]) -> Any:
    tree.num_nodes += 1
    if tree.num_nodes > MOST_NODES:
        raise _TooMany(node.start_mark)
    # An alias repeats its anchor's places; a key's first place is the one a reader looks for.
    tree.values.setdefault(path, _mark(node.start_mark))
    if id(node) in above:
        tree.faults.append(
            TextFault(mark=_mark(node.start_mark), key=".".join(path), found="it contains itself")
        )
        return None
    inner = (*above, id(node))
    if isinstance(node, yaml.MappingNode):
        return dict(_pairs(node, path, tree, inner))
    if isinstance(node, yaml.SequenceNode):
        return [_construct(item, (*path, str(at)), tree, inner) for at, item in enumerate(node.value)]
    return _scalar(node, path, tree)


def _pairs(
    node: yaml.MappingNode, path: Path, tree: MarkedTree, above: tuple[int, ...]
) -> Iterator[tuple[str, Any]]:
    seen: dict[str, Mark] = {}
    for key_node, value_node in node.value:
        mark = _mark(key_node.start_mark)
        if not isinstance(key_node, yaml.ScalarNode):
            tree.faults.append(TextFault(mark=mark, key=".".join(path), found="a key must be a word"))
            continue
        key = str(key_node.value)
        if key in seen:
            found = f"this key already stands in line {seen[key].line}; keep one of them"
            tree.faults.append(TextFault(mark=mark, key=".".join((*path, key)), found=found))
            continue
        seen[key] = mark
        tree.keys[(*path, key)] = mark
        yield key, _construct(value_node, (*path, key), tree, above)


def _scalar(node: yaml.Node, path: Path, tree: MarkedTree) -> Any:
    text = str(node.value)
    kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
    if kind == "str":
        return text
    if kind in _READERS and _READERS[kind][0].fullmatch(text):
        return _READERS[kind][1](text)
    found = f"{text!r} is not {kind}" if kind in _READERS else f"tag {node.tag} is not allowed"
    tree.faults.append(TextFault(mark=_mark(node.start_mark), key=".".join(path), found=found))
    return None


def _syntax_fault(error: yaml.YAMLError, text: str) -> TextFault:
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        mark = Mark(before.count("\n") + 1, len(before) - before.rfind("\n"))
        return TextFault(
            mark=mark, key="", found=f"the character {chr(error.character)!r} is not allowed in YAML"
        )
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return TextFault(mark=None, key="", found=f"not YAML: {error}")
    place = _mark(error.problem_mark)
    lines = text.splitlines()
    line = lines[place.line - 1] if place.line <= len(lines) else ""
    if "\t" in line[: place.column]:
        return TextFault(mark=place, key="", found="a tab; YAML indents with spaces only")
    found = f"not YAML: {error.problem or error.context}"
    if error.context and error.problem:
        found += f" ({error.context})"
    return TextFault(mark=place, key="", found=found)
