"""Is it still the same data set? A short text that changes when it does."""

from __future__ import annotations

import hashlib
from typing import Any

from drivetrain.data.image_index import ImageFolderIndex


def fingerprint(dataset: Any) -> str:
    """A text KIND:LENGTH:HASH, which changes with the data set.

    For image folders the hash is over the files' paths below the root and their sizes: one question to the
    file system a file, about ten seconds for a million files on a local disk, so one rank should ask for all.
    Moving the whole folder does not change it. For other data sets the hash is over the type, the length and,
    where there is one, the attribute (or method) `fingerprint`.
    """
    dataset = getattr(dataset, "unwrapped", dataset)
    inner = getattr(dataset, "index", None)
    if isinstance(inner, ImageFolderIndex):
        return f"images:{len(inner)}:{_of_files(inner)}"
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    own = getattr(dataset, "fingerprint", None)
    text = f"{kind} {len(dataset)} {own() if callable(own) else own}"
    return (
        f"{type(dataset).__name__}:{len(dataset)}:{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
    )


def explain_change(old: str, new: str) -> str:
    """What changed from fingerprint `old` to `new`, as one sentence."""
    if old == new:
        return "the data set is unchanged"
    (old_kind, old_length, _), (new_kind, new_length, _) = _parts(old), _parts(new)
    if old_kind != new_kind:
        return (
            f"the data set was {old_kind} with {old_length} samples and is now {new_kind} with {new_length}"
        )
    if old_length != new_length:
        difference = abs(int(new_length) - int(old_length))
        word = "more" if int(new_length) > int(old_length) else "fewer"
        return f"the data set had {old_length} samples and now has {new_length}: at least {difference} {word}"
    what = "files were renamed, replaced or changed" if old_kind == "images" else "its content changed"
    return f"the data set has {old_length} samples as before, but {what}"


def _of_files(index: ImageFolderIndex) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in index.relative_paths():
        digest.update(path.encode("utf-8", "surrogateescape") + b"\\0")
    digest.update(index.sizes_bytes().astype("<i8").tobytes())
    return digest.hexdigest()


def _parts(text: str) -> tuple[str, str, str]:
    kind, length, rest = text.split(":")
    return kind, length, rest
