"""Finds the last traceback in the tail of a rank's log: the whole chain of exceptions, and its last line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TAIL_BYTES = 256 * 1024
_MAX_MESSAGE_LINES = 60
_HEADER = re.compile(r"(?:\s*\+ )?(?:Exception Group )?Traceback \(most recent call last\):$")
# torch.distributed's excepthook puts this before every line of an uncaught exception.
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
# What may follow an uncaught exception's message: the interpreter's shutdown, C++ loggers, torch's warnings.
_AFTER = re.compile(r"(Exception ignored |\[W\d|\[E\d|\[I\d|[WEIF]\d{4} \d\d:|sys:1: |/\S+: \w*Warning: )")
_EXCEPTION = re.compile(r"(?:[A-Za-z_][\w.<>]*)(?::|$)")


@dataclass(frozen=True, kw_only=True)
class TracebackText:
    """`message` is the line that names the exception; `text` the traceback with all exceptions before it."""

    message: str
    text: str


def read_tail(path: Path, *, start: int = 0, max_bytes: int = TAIL_BYTES) -> str:
    """The last `max_bytes` of a file, from byte `start` on; "" where it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(start, size - max_bytes))
            return file.read(max_bytes).decode("utf-8", errors="replace")
    except OSError:
        return ""


def begins_traceback(line: str) -> bool:
    """Whether an uncaught exception, or one that the interpreter ignores, begins on this line."""
    bare = _RANK_PREFIX.sub("", line.rstrip("\r\n"))
    return _HEADER.match(bare) is not None or bare.startswith("Exception ignored ")


def last_traceback(text: str) -> TracebackText | None:
    """The last complete or cut-off traceback in `text`, or None."""
    lines = [_RANK_PREFIX.sub("", line.rstrip("\r")) for line in text.split("\n")]
    headers = [index for index, line in enumerate(lines) if _HEADER.match(line)]
    if not headers:
        return None
    first = last = headers[-1]
    for index in reversed(headers[:-1]):
        if not _is_chained(lines, first):
            break
        first = index
    end, message = _end_of_block(lines, last)
    return TracebackText(message=message, text="\n".join(lines[first:end]).rstrip())


def last_lines(text: str, count: int) -> str:
    """The last `count` lines that are not blank; of a line that was redrawn, its last drawing."""
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return "\n".join([_RANK_PREFIX.sub("", line) for line in lines if line][-count:])


def fatal_python_error(text: str) -> str | None:
    """What faulthandler printed at a deadly signal: "Fatal Python error: …" and the threads' stacks."""
    start = max(text.rfind("\nFatal Python error: "), 0 if text.startswith("Fatal Python error: ") else -1)
    if start < 0:
        return None
    return "\n".join(text[start:].strip("\n").split("\n")[:_MAX_MESSAGE_LINES])


def _is_chained(lines: list[str], header: int) -> bool:
    for line in reversed(lines[:header]):
        if line.strip():
            return line.strip() in _CHAIN
    return False


def _end_of_block(lines: list[str], header: int) -> tuple[int, str]:
    """The index after the traceback that starts at `header`, and the line that names its exception."""
    is_group = "Exception Group" in lines[header]
    index = header + 1
    while index < len(lines) and (is_group or lines[index].startswith((" ", "\t"))):
        if is_group and not re.match(r"\s*[|+]", lines[index]):
            break
        index += 1
    if is_group:
        return index, _group_message(lines[header:index])
    if index == len(lines) or not lines[index].strip():
        return index, lines[index - 1].strip()
    message_start = index
    index += 1
    while (
        index < len(lines)
        and lines[index].strip()
        and index - message_start < _MAX_MESSAGE_LINES
        and not _AFTER.match(lines[index])
    ):
        index += 1
    message = lines[message_start].strip()
    block = lines[message_start:index]
    if any(line.startswith("Original Traceback") for line in block):
        # A data loader's worker: the first line only says "Caught X in DataLoader worker process 0."
        message = next((line for line in reversed(block) if _EXCEPTION.match(line)), message)
    return index, message


def _group_message(lines: list[str]) -> str:
    for line in lines[1:]:
        bare = line.lstrip(" |+")
        if "|" in line and _EXCEPTION.match(bare) and not bare.startswith("File "):
            return bare.strip()
    return lines[-1].strip(" |+")
