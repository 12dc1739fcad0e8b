"""The default corpus: the source of Python's own standard library, real text that every machine has."""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from drivetrain.data.text_files import prepare_text
from drivetrain.data.token_file import read_header
from drivetrain.data.tokenizers import ByteTokenizer
from drivetrain.spec.errors import InputError

# Not Python's own, or not installed everywhere.
_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "lib-dynload", "idlelib"}


def stdlib_corpus(*, max_bytes: int, environ: Mapping[str, str] | None = None) -> Path:
    """The token file of the standard library's source, bytes as tokens; made where it is not there yet.

    It lies in the user's cache ($XDG_CACHE_HOME/drivetrain, else ~/.cache/drivetrain), or, where that cannot
    be written, in the folder for temporary files. Any number of processes may ask at once: each makes it
    whole, with the same content, and the last one's stays.

    Args:
        max_bytes: files are taken until there are about so many. Which ones is a matter of a hash of their
            names, so that a small corpus is a mixture too.

    Raises:
        InputError: this Python comes without source, or no folder can be written.
    """
    files = _source_files(max_bytes)
    listing = "".join(f"{name} {size}\n" for name, size, _ in files)
    digest = hashlib.blake2b(listing.encode(), digest_size=6).hexdigest()
    name = f"python-{platform.python_version()}-{digest}.tokens"
    problem: InputError | None = None
    for folder in _folders(os.environ if environ is None else environ):
        path = folder / name
        if _is_good(path):
            return path
        try:
            _make_own(folder)
            return prepare_text((source for _, _, source in files), path, ByteTokenizer()).path
        except (InputError, OSError) as error:
            problem = error if isinstance(error, InputError) else _no_folder(folder, error)
    assert problem is not None
    raise problem


def _source_files(max_bytes: int) -> list[tuple[str, int, Path]]:
    """(name below the library, bytes, path), in order of a hash of the name, up to `max_bytes`."""
    library = Path(sysconfig.get_path("stdlib"))
    found: list[tuple[str, int, Path]] = []
    for root, folders, names in os.walk(library):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        for name in names:
            path = Path(root, name)
            if name.endswith(".py") and path.is_file():
                found.append((path.relative_to(library).as_posix(), path.stat().st_size, path))
    if not found:
        raise InputError(
            f"the default corpus, the source of Python's standard library in {library}",
            "there is none",
            "give text of your own: drivetrain data prepare --text … -o FILE, then --data.path FILE",
        )
    found.sort(key=lambda item: hashlib.blake2b(item[0].encode(), digest_size=8).digest())
    chosen: list[tuple[str, int, Path]] = []
    total = 0
    for item in found:
        if chosen and total + item[1] > max_bytes:
            continue
        chosen.append(item)
        total += item[1]
    return chosen


def _is_good(path: Path) -> bool:
    try:
        read_header(path)
    except InputError:
        return False
    return True


def _folders(environ: Mapping[str, str]) -> list[Path]:
    cache = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is to be taken for none.
    base = Path(cache) if Path(cache).is_absolute() else Path("~/.cache").expanduser()
    return [base / "drivetrain", Path(tempfile.gettempdir()) / f"drivetrain-{os.getuid()}"]


def _make_own(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        # In a folder for all, somebody else may have made it first, to have us read what they like.
        raise InputError(str(folder), "it belongs to another user", "set XDG_CACHE_HOME to a folder of yours")


def _no_folder(folder: Path, error: OSError) -> InputError:
    found = f"{folder}: {error.strerror or error}"
    return InputError("a place to keep the default corpus", found, "set XDG_CACHE_HOME to a folder of yours")
