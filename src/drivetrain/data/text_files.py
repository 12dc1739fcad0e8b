"""Text files become one token file; each file is a document."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from drivetrain.data.token_file import TokenHeader, TokenWriter
from drivetrain.data.tokenizers import Tokenizer
from drivetrain.spec.errors import InputError

_PROBE_BYTES = 8192


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A written token file, and what was left out of it."""

    path: Path
    header: TokenHeader
    num_binary: int
    num_empty: int


def find_text_files(paths: Iterable[Path], *, pattern: str = "*") -> list[Path]:
    """The files that `paths` mean: files as they are, folders with everything below, in order of names.

    Hidden files and folders are left out.

    Args:
        pattern: which names of files in folders, as in a shell ("*.txt").

    Raises:
        InputError: a path is not there, or no file is left.
    """
    paths = list(paths)
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += _below(path, pattern)
        elif path.exists():
            files.append(path)
        else:
            raise InputError(f"text in {path}", "there is no such file or folder", "check the path")
    if not files:
        where = ", ".join(map(str, paths))
        raise InputError(
            f"text in {where or 'nothing'}", f"no file there matches {pattern}", "name others, or --glob"
        )
    return files


def prepare_text(files: Iterable[Path], output: Path, tokenizer: Tokenizer) -> Prepared:
    """Writes the token file `output` of `files`, in their order. Empty and binary ones are left out, counted.

    Raises:
        InputError: a file cannot be read, `output` cannot be written, or nothing is left.
    """
    num_binary = num_empty = 0
    with TokenWriter(
        output, vocab_size=tokenizer.vocab_size, separator=tokenizer.separator, tokenizer=tokenizer.name
    ) as writer:
        for path in files:
            try:
                start = _start_of(path)
                if not start or b"\0" in start:
                    num_empty, num_binary = num_empty + (not start), num_binary + bool(start)
                    continue
                for tokens in tokenizer.encode_file(path):
                    writer.append(tokens)
            except OSError as error:
                raise InputError(f"text in {path}", error.strerror or str(error), "check it") from error
            writer.end_document()
    assert writer.header is not None
    return Prepared(path=output, header=writer.header, num_binary=num_binary, num_empty=num_empty)


def _below(folder: Path, pattern: str) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if fnmatch.fnmatch(name, pattern) and not name.startswith("."):
                path = Path(root, name)
                if path.is_file():
                    yield path


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_PROBE_BYTES)
