"""One line of a matrix: is it a heading, a row, or neither, and where do its cells end."""

from __future__ import annotations

import re
from dataclasses import dataclass

from drivetrain.hardware.topology.links import CELL_CODES, read_link

SELF = "X"
PEER_CODES = ("CNS", "GNS", "TNS", "OK", "NS", "DR", "U")
"""What a cell of `nvidia-smi topo -p2p` may hold."""

_CODE = rf"(?:{'|'.join((*CELL_CODES, SELF))}|NV\d+)"
_ONE_CODE = re.compile(rf"{'|'.join((*CELL_CODES, SELF))}|NV\d+")
_CODES = re.compile(rf"{_CODE}+")
_CODES_THEN_CPUS = re.compile(rf"((?:{'|'.join((*CELL_CODES, SELF))}|NV\d+(?=[A-Z]))*)(NV)?(\d+[-,]\S*)")
_AFFINITY = re.compile(r"\d[\d,\-]*")
_COMMA_BETWEEN_CELLS = re.compile(
    rf"[,;](?=\s*(?:{_CODE}\b|GPU\d|NIC\d|mlx|CPU|NUMA|GPU NUMA))|(?<=[A-Z]),(?=\d)"
)

_GPU = re.compile(r"GPU\d{1,3}")
# Labels that may be glued to a neighbour, then whatever else names a device (`hfi1_0`, `rocep1s0`).
_GLUED_LABELS = re.compile(r"(?:GPU\d{1,3}|NIC\d{1,3}|mlx\d_(?:bond_?)?\d{1,3})+")
_ONE_LABEL = re.compile(r"GPU\d{1,3}|NIC\d{1,3}|mlx\d_(?:bond_?)?\d{1,3}")
_OTHER_LABEL = re.compile(r"[A-Za-z][\w.:\-]*\d[\w.:\-]*")
_COLUMN_HEADS = re.compile(r"GPU\s+NUMA(?:\s+ID)?|CPU\s*Affinity|NUMA\s*Affinity|\bCPU\b|\bNUMA\b")
_HEAD_NAMES = {"GPU": "gpu_numa", "CPU": "cpus", "NUM": "numa"}


@dataclass(frozen=True, kw_only=True)
class Heading:
    """`labels`: devices in order of their columns, None for one that cannot be read; `columns`: "cpus",
    "numa", "gpu_numa", as far as they are there; `prefix`: what stands before, a log's prefix."""

    labels: tuple[str | None, ...]
    columns: tuple[str, ...]
    prefix: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """`cells`: links, X or None for what is none; `tail`: the text behind them, from the last cell on."""

    label: str
    cells: tuple[str | None, ...]
    tail: str
    prefix: str
    is_peer: bool


def split_flattened(line: str) -> list[str]:
    """A paste that lost its line ends: broken again before each label that cells follow."""
    line = _COMMA_BETWEEN_CELLS.sub(" ", line)
    marks = [m.start() for m in re.finditer(rf"(?<!\S)(?:GPU|NIC)\d{{1,3}}(?=:?\s+{_CODE}(?:\s|$))", line)]
    if len(marks) < 2:
        return [line]
    starts = [0, *marks] if line[: marks[0]].strip() else marks
    return [line[a:b] for a, b in zip(starts, [*starts[1:], len(line)], strict=True)]


def read_heading(line: str) -> Heading | None:
    """The heading in a line, or None."""
    first = _GPU.search(line)
    if first is None or _follows_letter(line, first.start()):
        return None
    heads = list(_COLUMN_HEADS.finditer(line, first.start()))
    damaged = re.search(r"\S*(?<!CPU)(?<!NUMA)\s+Affinity", line[first.start() :])
    end = min([head.start() for head in heads], default=len(line))
    if damaged is not None:
        end = min(end, first.start() + damaged.start())
    labels: list[str | None] = []
    for token in line[first.start() : end].split():
        labels.extend(_labels(token))
    num_gpus = sum(label is not None and label.startswith("GPU") for label in labels)
    num_bad = labels.count(None)
    if num_gpus == 0 or num_bad > 1 + len(labels) // 8 or (num_bad and num_gpus < 2):
        return None
    columns = tuple(_HEAD_NAMES[head.group()[:3]] for head in heads)
    return Heading(labels=tuple(labels), columns=columns, prefix=_prefix(line[: first.start()]))


def _labels(token: str) -> list[str | None]:
    if _GLUED_LABELS.fullmatch(token):
        return list(_ONE_LABEL.findall(token))
    if _OTHER_LABEL.fullmatch(token) and not _CODES.fullmatch(token):
        return [token]
    return [None]


def _follows_letter(line: str, at: int) -> bool:
    return at > 0 and (line[at - 1].isalnum() or line[at - 1] in "_-")


def read_row(line: str, known_labels: frozenset[str]) -> Row | None:
    """The row in a line, or None. Labels other than GPUs count only if a heading named them."""
    label = _row_label(line, known_labels)
    if label is None:
        return None
    name, start, rest = label
    cells, tail, is_peer = read_cells(rest)
    if not any(cells) or cells.count(None) > 1 + len(cells) // 4:  # a sentence that names a GPU
        return None
    return Row(label=name, cells=cells, tail=tail, prefix=_prefix(line[:start]), is_peer=is_peer)


def _row_label(line: str, known_labels: frozenset[str]) -> tuple[str, int, str] | None:
    gpu = _GPU.search(line)
    if gpu is not None:
        rest = line[gpu.end() :]
        if _follows_letter(line, gpu.start()) or _GPU.search(rest):
            return None
        is_cut = not rest or rest[0] in ": \t" or _CODES.match(rest)
        return (gpu.group(), gpu.start(), rest.removeprefix(":")) if is_cut else None
    for token in list(re.finditer(r"\S+", line))[:4]:
        name = token.group().removesuffix(":")
        if name in known_labels or re.fullmatch(r"NIC\d{1,3}", name):
            return name, token.start(), line[token.end() :]
    return None


def read_cells(text: str) -> tuple[tuple[str | None, ...], str, bool]:
    """Cells up to the first affinity, the text behind them, and whether they are of a peer table."""
    cells: list[str | None] = []
    end = 0
    tokens = list(re.finditer(r"\S+", text))
    is_peer = any(token.group() in PEER_CODES for token in tokens)
    for at, token in enumerate(tokens):
        word = token.group()
        if _AFFINITY.match(word) or (word == "N/A" and not _codes_follow(tokens[at + 1 :])):
            break
        if _CODES.fullmatch(word):
            cells.extend(_cell(code) for code in _ONE_CODE.findall(word))
        elif is_peer and word in PEER_CODES:
            cells.append(word)
        elif (glued := _CODES_THEN_CPUS.fullmatch(word)) is not None:
            cells.extend(_cell(code) for code in _ONE_CODE.findall(glued[1]))
            count, cpus = _part_nvlink(glued[3]) if glued[2] else ("", glued[3])
            if glued[2]:
                cells.append(_cell("NV" + count))
            return tuple(cells), cpus + text[token.end() :], is_peer
        else:
            cells.append(None)
        end = token.end()
    return tuple(cells), text[end:], is_peer


def _codes_follow(tokens: list[re.Match[str]]) -> bool:
    return any(_CODES.fullmatch(token.group()) for token in tokens)


def _cell(code: str) -> str | None:
    if code == SELF:
        return SELF
    link = read_link(code)
    return None if link is None else str(link)


def _part_nvlink(text: str) -> tuple[str, str]:
    """`180-55` behind "NV" is 18 links and CPUs 0-55; what can be parted in two ways is not parted."""
    ways = [
        (text[:n], text[n:])
        for n in (1, 2)
        if read_link("NV" + text[:n]) and re.match(r"(?:0|[1-9]\d*)[-,]", text[n:])
    ]
    return ways[0] if len(ways) == 1 else ("", "")


def is_only_cells(line: str) -> bool:
    """A line of nothing but cells and affinities: the rest of a row that was wrapped."""
    words = line.split()
    return bool(words) and all(_CODES.fullmatch(w) or _AFFINITY.fullmatch(w) or w == "N/A" for w in words)


def _prefix(text: str) -> str:
    """What a log puts before a line, made comparable: time stamps differ from line to line."""
    text = text.strip().rstrip(">#$ \t")
    return re.sub(r"\d", "#", text) if sum(map(str.isdigit, text)) >= 6 else text
