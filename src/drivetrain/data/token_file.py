"""Token files: a header, the documents' boundaries, and the tokens, to be mapped into memory.

    0      magic, version, bytes a token, vocabulary, tokens, documents, separator, digest, tokenizer, check
    128    tokens, little endian, documents end to end, each followed by the separator
    …      zeros up to a multiple of 8
    …      where documents end, (documents + 1) uint64, the first of them 0: separators included

Torch-free, as the command line checks files before anything is launched.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from drivetrain.spec.errors import InputError

MAGIC = b"dt-token"
VERSION = 1
_HEADER = struct.Struct("<8sHHIQQq16s64s")
_CHECK_BYTES = 8
HEADER_BYTES = _HEADER.size + _CHECK_BYTES
_TYPES: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}
_MAKE_AGAIN = "make it again: drivetrain data prepare --text … -o FILE"


@dataclass(frozen=True, kw_only=True)
class TokenHeader:
    """What a token file says of itself.

    Attributes:
        vocab_size: one more than the largest id that its tokenizer gives, the separator's included.
        num_tokens: separators included.
        separator: the token after each document.
        digest: of the tokens, in hex.
    """

    token_bytes: int
    vocab_size: int
    num_tokens: int
    num_documents: int
    separator: int
    digest: str
    tokenizer: str

    @property
    def dtype(self) -> np.dtype[Any]:
        return _TYPES[self.token_bytes]

    @property
    def boundaries_offset(self) -> int:
        """Byte at which the boundaries begin."""
        return HEADER_BYTES + -(-self.num_tokens * self.token_bytes // 8) * 8

    @property
    def file_bytes(self) -> int:
        return self.boundaries_offset + 8 * (self.num_documents + 1)

    def pack(self) -> bytes:
        fields = _HEADER.pack(
            MAGIC,
            VERSION,
            self.token_bytes,
            self.vocab_size,
            self.num_tokens,
            self.num_documents,
            self.separator,
            bytes.fromhex(self.digest),
            self.tokenizer.encode()[:64],
        )
        return fields + _check(fields)


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenFile:
    """An open token file, mapped read-only: only pages that are read take memory, shared by all processes.

    Attributes:
        tokens: (num_tokens,).
        boundaries: (num_documents + 1,) uint64; document d is tokens[b[d] : b[d + 1]], its separator last.
    """

    header: TokenHeader
    tokens: NDArray[Any]
    boundaries: NDArray[np.uint64]


def open_tokens(path: str | Path) -> TokenFile:
    """Maps a token file. Header and content are of one file, even if another is just put into its place.

    Raises:
        InputError: see `read_header`.
    """
    with _opened(path) as file:
        header = _read_header(path, file)
        tokens = np.memmap(
            file, dtype=header.dtype, mode="r", offset=HEADER_BYTES, shape=(header.num_tokens,)
        )
        boundaries = np.memmap(
            file,
            dtype="<u8",
            mode="r",
            offset=header.boundaries_offset,
            shape=(header.num_documents + 1,),
        )
    return TokenFile(header=header, tokens=tokens, boundaries=boundaries)


def read_header(path: str | Path) -> TokenHeader:
    """The header of a token file, held against its size.

    Raises:
        InputError: the file cannot be read, is no token file, is damaged, or was cut off.
    """
    with _opened(path) as file:
        return _read_header(path, file)


def _opened(path: str | Path) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise InputError(f"token file {path}", error.strerror or str(error), "check data.path") from error


def _read_header(path: str | Path, file: BinaryIO) -> TokenHeader:
    asked = f"token file {path}"
    raw = file.read(HEADER_BYTES)
    size = os.fstat(file.fileno()).st_size
    if not raw.startswith(MAGIC):
        raise InputError(
            asked, "it does not begin as one", "make one from text: drivetrain data prepare --text … -o FILE"
        )
    if len(raw) < HEADER_BYTES or _check(raw[: _HEADER.size]) != raw[_HEADER.size :]:
        raise InputError(asked, "its header is damaged", _MAKE_AGAIN)
    _, version, token_bytes, vocab, tokens, documents, separator, digest, name = _HEADER.unpack(
        raw[: _HEADER.size]
    )
    if version != VERSION or token_bytes not in _TYPES:
        raise InputError(asked, f"it is of version {version} with {token_bytes} bytes a token", _MAKE_AGAIN)
    header = TokenHeader(
        token_bytes=token_bytes,
        vocab_size=vocab,
        num_tokens=tokens,
        num_documents=documents,
        separator=separator,
        digest=digest.hex(),
        tokenizer=name.rstrip(b"\0").decode(errors="replace"),
    )
    if size != header.file_bytes:
        raise InputError(
            asked,
            f"it has {size:,} bytes and its header speaks of {header.file_bytes:,}: it was cut off",
            _MAKE_AGAIN,
        )
    return header


class TokenWriter:
    """Writes a token file beside its place and moves it there when it is whole.

        with TokenWriter(path, vocab_size=256, separator=0, tokenizer="bytes") as writer:
            writer.append(tokens)      # as often as wanted
            writer.end_document()

    Left by an exception, it leaves nothing. Whoever has the old file open keeps reading that.

    Raises:
        InputError: it cannot be written there, a token is outside the vocabulary, or there is no document.
    """

    def __init__(self, path: str | Path, *, vocab_size: int, separator: int, tokenizer: str) -> None:
        if not 0 <= separator < vocab_size <= 2**32 - 1:
            raise InputError(
                f"a token file of {vocab_size} different tokens",
                f"its separator is {separator}",
                f"give a separator below the vocabulary's size, and that below {2**32:,}",
            )
        self.path = Path(path)
        self.num_tokens = 0
        self._vocab_size = vocab_size
        self._separator = separator
        self._tokenizer = tokenizer
        self._token_bytes = 1 if vocab_size <= 2**8 else 2 if vocab_size <= 2**16 else 4
        self._ends = [0]
        self._digest = hashlib.blake2b(digest_size=16)
        self._file: BinaryIO | None = None
        self._beside: Path | None = None
        self.header: TokenHeader | None = None

    def __enter__(self) -> TokenWriter:
        try:
            # A name of its own: several processes may prepare the same file, and the last one's stays.
            number, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
            self._beside, self._file = Path(name), os.fdopen(number, "wb")
            self._file.write(b"\0" * HEADER_BYTES)
        except OSError as error:
            raise self._not_written(error) from error
        return self

    def append(self, tokens: NDArray[Any]) -> None:
        """Adds (n,) integers to the current document."""
        if len(tokens) == 0:
            return
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self._vocab_size:
            raise InputError(
                f"token {low if low < 0 else high}",
                f"the vocabulary has {self._vocab_size}, from 0",
                "write it with the vocabulary of its own tokenizer",
            )
        assert self._file is not None
        raw = np.ascontiguousarray(tokens, dtype=_TYPES[self._token_bytes]).tobytes()
        try:
            self._file.write(raw)
        except OSError as error:
            raise self._not_written(error) from error
        self._digest.update(raw)
        self.num_tokens += len(tokens)

    def end_document(self) -> None:
        """Ends the current document; one without tokens is left out."""
        if self.num_tokens > self._ends[-1]:
            self.append(np.array([self._separator]))
            self._ends.append(self.num_tokens)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        assert self._beside is not None
        try:
            with self._file:
                if kind is None:
                    self._finish(self._file)
            if kind is None:
                self._beside.chmod(0o644)  # mkstemp's files are their owner's alone
                self._beside.replace(self.path)
        except OSError as problem:
            raise self._not_written(problem) from problem
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._beside.unlink()

    def _finish(self, file: BinaryIO) -> None:
        self.end_document()
        if self.num_tokens == 0:
            raise InputError(f"token file {self.path}", "there is no text to put into it", "name other files")
        self.header = TokenHeader(
            token_bytes=self._token_bytes,
            vocab_size=self._vocab_size,
            num_tokens=self.num_tokens,
            num_documents=len(self._ends) - 1,
            separator=self._separator,
            digest=self._digest.hexdigest(),
            tokenizer=self._tokenizer,
        )
        file.write(b"\0" * (self.header.boundaries_offset - file.tell()))
        file.write(np.array(self._ends, dtype="<u8").tobytes())
        file.seek(0)
        file.write(self.header.pack())
        file.flush()
        os.fsync(file.fileno())

    def _not_written(self, error: OSError) -> InputError:
        return InputError(
            f"token file {self.path}", error.strerror or str(error), "name a place that can be written"
        )


def _check(fields: bytes) -> bytes:
    return hashlib.blake2b(fields, digest_size=_CHECK_BYTES).digest()
