"""Values given beside the run file: dotted overrides, first-class flags, the environment's defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drivetrain.config.launch_words import PET_VARIABLES


@dataclass(frozen=True, kw_only=True)
class Override:
    """One value that takes the place of the run file's.

    Attributes:
        key: dotted, with underscores.
        text: the value as written; None where none was (`--deterministic`), which means true.
        where: the place that an error names: "the command line, --optim.lr".
    """

    key: str
    text: str | None
    where: str


def normal_key(written: str) -> str:
    """`--optim.weight-decay`, as a user may write it, as the dotted key `optim.weight_decay`."""
    return written.removeprefix("--").replace("-", "_")


def from_command_line(written: str, text: str | None, *, key: str | None = None) -> Override:
    """An override for the option `written` ("--optim.lr"); `key` where a flag stands for another key."""
    return Override(key=key or normal_key(written), text=text, where=f"the command line, {written}")


def from_environment(environ: Mapping[str, str]) -> tuple[Override, ...]:
    """The launch settings that PET_* variables give; an empty variable gives none."""
    found = []
    for variable, key in PET_VARIABLES.items():
        text = environ.get(variable, "")
        if text == "":
            continue
        if key == "launch.standalone":  # torchrun takes 0 and 1 for its switches
            text = {"1": "true", "0": "false"}.get(text, text.lower())
        found.append(Override(key=key, text=text, where=f"the environment, {variable}"))
    return tuple(found)


def split_overrides(args: Sequence[str], flags: Mapping[str, bool]) -> tuple[list[str], tuple[Override, ...]]:
    """Parts a command line into what the known flags and arguments are, and overrides of any key.

    `--optim.lr 0.1`, `--optim.lr=0.1` and, for a switch, `--deterministic`. Names may be written with dashes
    or underscores. Which keys exist is not looked at here; the loader reports unknown ones with the rest.

    Args:
        flags: the verb's own options, written with dashes, and whether each takes a value.
    Returns:
        The remaining arguments with the flags' names in dashes, and the overrides in order.
    """
    rest: list[str] = []
    overrides: list[Override] = []
    queue = list(args)
    while queue:
        token = queue.pop(0)
        if token == "--":
            return [*rest, token, *queue], tuple(overrides)
        if not token.startswith("-") or token == "-":
            rest.append(token)
            continue
        name, equals, text = token.partition("=")
        flag = name.replace("_", "-") if name.startswith("--") else name
        if flag in flags:
            rest.append(flag + equals + text)
            # The value is passed on here, so that one that looks like an option is not read as one.
            if flags[flag] and not equals and queue:
                rest.append(queue.pop(0))
        elif not name.startswith("--"):
            rest.append(token)
        else:
            value = text if equals else _take_value(queue)
            overrides.append(from_command_line(name, value))
    return rest, tuple(overrides)


def _take_value(queue: list[str]) -> str | None:
    """The next argument, unless it is an option itself; a negative number is a value."""
    if not queue:
        return None
    following = queue[0]
    if following.startswith("--") or (following.startswith("-") and not following[1:2].isdigit()):
        return None
    return queue.pop(0)
