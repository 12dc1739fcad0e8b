"""RunConfig as YAML text that loads back to the same RunConfig, headed by the versions it was made with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from drivetrain._version import __version__
from drivetrain.config.marked_yaml import FLOAT
from drivetrain.config.schema import RunConfig


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or 1.2 would read as something else, so that either reader gets text."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  PyYAML's signature
        """Equal values are written out each time: anchors are for machines."""
        return True


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(f"^(?:{FLOAT.pattern})$"), list("-+.0123456789")
)
# PyYAML folds some of these breaks away outside double quotes (U+0085 in a key becomes a space).
_BREAKS = re.compile("[\n\r\x85\u2028\u2029]")
_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style='"' if _BREAKS.search(text) else None
    ),
)
_Dumper.add_representer(
    list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)
)


def dump(config: RunConfig, notes: Sequence[str] = ()) -> str:
    """The text of a run file: a comment with the versions and `notes` (what `auto` became), then all keys."""
    lines = [f"# {line}" for note in (versions(), *notes) for line in note.splitlines()]
    body = yaml.dump(
        _plain(config.model_dump()), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000
    )
    return "\n".join([*lines, body])


def write(config: RunConfig, path: Path, notes: Sequence[str] = ()) -> None:
    """Writes `dump`'s text to `path` at once: a reader sees the old file or the whole new one.

    Raises:
        OSError: the folder cannot be written, or the disk is full; `path` is as it was.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(dump(config, notes))
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def versions() -> str:
    """Versions of what computes the results, read from package metadata: importing torch takes seconds."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "not installed"
    return f"drivetrain {__version__}, torch {torch}, Python {platform.python_version()}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
