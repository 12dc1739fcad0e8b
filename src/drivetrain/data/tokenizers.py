"""From text to tokens: bytes as they are, or the vocabulary in a tokenizer's file, where its library is."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from drivetrain.spec.errors import InputError

_CHUNK_BYTES = 16 * 2**20
# What tokenizers call the token between documents.
_SEPARATORS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]", "<|im_end|>")
_TIKTOKEN = "tiktoken:"


class Tokenizer(Protocol):
    """Makes documents into tokens.

    Attributes:
        name: written into the token file, 64 bytes of it.
        separator: the token after each document.
    """

    name: str
    vocab_size: int
    separator: int

    def encode_file(self, path: Path) -> Iterator[NDArray[Any]]:
        """The tokens of one document, in pieces. Raises OSError."""


class ByteTokenizer:
    """Each byte is a token. Byte 0, which text does not hold, separates documents."""

    name = "bytes"
    vocab_size = 256
    separator = 0

    def encode_file(self, path: Path) -> Iterator[NDArray[Any]]:
        with path.open("rb") as file:
            while piece := file.read(_CHUNK_BYTES):
                yield np.frombuffer(piece, dtype=np.uint8)


class HuggingFaceTokenizer:
    """A tokenizer.json of Hugging Face's `tokenizers`."""

    def __init__(self, path: Path, *, separator: str | None) -> None:
        _need("tokenizers", path)
        import tokenizers

        try:
            self._inner = tokenizers.Tokenizer.from_file(str(path))
        # The library raises a bare Exception for any file that it cannot use.
        except Exception as error:
            raise InputError(f"tokenizer {path}", str(error), "name a tokenizer.json") from error
        self.name = path.name
        vocab = self._inner.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values()) + 1
        self.separator = _separator(vocab, separator, path)

    def encode_file(self, path: Path) -> Iterator[NDArray[Any]]:
        text = path.read_text(encoding="utf-8", errors="replace")
        yield np.array(self._inner.encode(text, add_special_tokens=False).ids, dtype=np.int64)


class TiktokenTokenizer:
    """An encoding that `tiktoken` knows by name. It fetches the vocabulary, or has it in TIKTOKEN_CACHE_DIR.

    By name, as a .tiktoken file lacks the pattern that text is cut by before its bytes are merged, and with
    another pattern the tokens are others.
    """

    def __init__(self, encoding: str) -> None:
        self.name = _TIKTOKEN + encoding
        _need("tiktoken", self.name)
        import tiktoken

        try:
            self._inner = tiktoken.get_encoding(encoding)
            self.separator = int(self._inner.eot_token)
        # An unknown name is a ValueError, no network whatever its client raises, no end token a KeyError.
        except Exception as error:
            known = ", ".join(tiktoken.list_encoding_names())
            raise InputError(f"tokenizer {self.name}", str(error).strip(), f"it knows {known}") from error
        self.vocab_size = self._inner.n_vocab

    def encode_file(self, path: Path) -> Iterator[NDArray[Any]]:
        text = path.read_text(encoding="utf-8", errors="replace")
        yield np.array(self._inner.encode_ordinary(text), dtype=np.int64)


def open_tokenizer(name: str, *, separator: str | None = None) -> Tokenizer:
    """The tokenizer called `name`: "bytes", the path of a tokenizer.json, or "tiktoken:ENCODING".

    Args:
        separator: for a tokenizer.json, the token to put between documents, where the usual ones are not
            meant.

    Raises:
        InputError: there is none such, its library is not installed, or it has no separator.
    """
    if separator is not None and not name.endswith(".json"):
        raise InputError(f"the separator {separator!r} with {name}", "it has its own", "leave it out")
    if name == "bytes":
        return ByteTokenizer()
    if name.startswith(_TIKTOKEN):
        return TiktokenTokenizer(name.removeprefix(_TIKTOKEN))
    path = Path(name)
    if path.suffix != ".json" or not path.is_file():
        found = "there is no such file" if path.suffix == ".json" else "it is none of the three kinds"
        raise InputError(f"tokenizer {name}", found, "bytes, path/to/tokenizer.json, or tiktoken:ENCODING")
    return HuggingFaceTokenizer(path, separator=separator)


def _need(library: str, what: str | Path) -> None:
    if importlib.util.find_spec(library) is None:
        raise InputError(
            f"tokenizer {what}",
            f"{library}, which reads it, is not installed",
            "pip install 'drivetrain[tokenizers]', or use --tokenizer bytes",
        )


def _separator(vocab: dict[str, int], wanted: str | None, path: Path) -> int:
    for token in (wanted,) if wanted is not None else _SEPARATORS:
        if token in vocab:
            return vocab[token]
    known = ", ".join(_SEPARATORS)
    raise InputError(
        f"tokenizer {path}",
        f"its vocabulary has no {wanted!r}" if wanted is not None else f"it has none of {known}",
        "name the token to put between documents: --separator TOKEN",
    )
