"""Token files: what is written is read, and nothing that is not whole."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest

from drivetrain.data.token_file import HEADER_BYTES, TokenWriter, open_tokens, read_header
from drivetrain.spec.errors import InputError

DOCUMENTS = ([5, 6, 7], [8], list(range(10, 40)))


def written(path, *, vocab_size=64, documents=DOCUMENTS):
    with TokenWriter(path, vocab_size=vocab_size, separator=0, tokenizer="ours") as writer:
        for document in documents:
            for start in range(0, len(document), 2):  # in pieces
                writer.append(np.array(document[start : start + 2]))
            writer.end_document()
    return writer.header


@pytest.mark.parametrize(
    ("vocab_size", "token_bytes"), [(64, 1), (256, 1), (257, 2), (65536, 2), (65537, 4), (2**32 - 1, 4)]
)
def test_what_is_written_is_read(tmp_path, vocab_size, token_bytes):
    path = tmp_path / "a.tokens"
    written(path, vocab_size=vocab_size, documents=([vocab_size - 1, 1], *DOCUMENTS))
    header = read_header(path)
    assert header.token_bytes == token_bytes
    assert (header.num_documents, header.num_tokens) == (4, 2 + 3 + 1 + 30 + 4)
    assert (header.separator, header.tokenizer, header.vocab_size) == (0, "ours", vocab_size)
    assert path.stat().st_size == header.file_bytes
    opened = open_tokens(path)
    assert opened.header == header
    tokens, ends = opened.tokens, opened.boundaries.tolist()
    assert ends == [0, 3, 7, 9, 40]
    assert tokens[:9].tolist() == [vocab_size - 1, 1, 0, 5, 6, 7, 0, 8, 0]
    assert not tokens.flags.writeable


def test_the_digest_is_of_the_tokens_however_they_came(tmp_path):
    first = written(tmp_path / "a")
    with TokenWriter(tmp_path / "b", vocab_size=64, separator=0, tokenizer="other") as writer:
        for document in DOCUMENTS:
            writer.append(np.array(document))
            writer.end_document()
    assert writer.header.digest == first.digest
    changed = written(tmp_path / "c", documents=([5, 6, 8], *DOCUMENTS[1:]))
    assert changed.digest != first.digest


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda raw: raw[:-1], "it was cut off"),
        (lambda raw: raw[: HEADER_BYTES + 3], "it was cut off"),
        (lambda raw: raw + b"x", "it was cut off"),
        (lambda raw: raw[:50], "its header is damaged"),
        (lambda raw: raw[:20] + b"\xff" + raw[21:], "its header is damaged"),
        (lambda raw: b"import os\n", "does not begin as one"),
        (lambda raw: b"\0" * len(raw), "does not begin as one"),
        (lambda raw: b"", "does not begin as one"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path, damage, text):
    path = tmp_path / "a.tokens"
    written(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=text) as caught:
        read_header(path)
    assert str(path) in caught.value.asked


def test_a_file_of_a_later_version_is_refused_by_number(tmp_path):
    path = tmp_path / "a.tokens"
    written(path)
    from drivetrain.data import token_file

    raw = path.read_bytes()
    fields = raw[:8] + b"\x09\x00" + raw[10 : HEADER_BYTES - 8]
    path.write_bytes(fields + token_file._check(fields) + raw[HEADER_BYTES:])
    with pytest.raises(InputError, match="version 9"):
        read_header(path)


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_header(tmp_path / "none.tokens")


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.tokens"
    written(path)
    before = path.read_bytes()
    writer = TokenWriter(path, vocab_size=64, separator=0, tokenizer="ours")

    def write_and_break():
        with writer:
            writer.append(np.arange(9))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_break()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("token", [-1, 64, 300])
def test_a_token_outside_the_vocabulary_is_refused(tmp_path, token):
    with pytest.raises(InputError, match="vocabulary has 64"):
        written(tmp_path / "a", documents=([1, token],))
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_write_is_refused(tmp_path):
    with pytest.raises(InputError, match="no text"):
        written(tmp_path / "a", documents=([], []))
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        written(tmp_path / "none" / "a.tokens")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="token file"):
        written(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def _write_again_and_again(path, number):
    documents = tuple([number] * 50 for _ in range(200))
    for _ in range(20):
        written(path, documents=documents)


def test_who_reads_while_others_write_sees_a_whole_file(tmp_path):
    path = tmp_path / "a.tokens"
    written(path, documents=([9] * 50,) * 200)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_again_and_again, args=(path, n)) for n in (1, 2)]
    for writer in writers:
        writer.start()
    num_reads = 0
    while any(writer.is_alive() for writer in writers) or not num_reads:
        opened = open_tokens(path)
        assert set(np.unique(opened.tokens).tolist()) in ({0, 1}, {0, 2}, {0, 9})
        assert opened.boundaries[-1] == len(opened.tokens)
        num_reads += 1
    for writer in writers:
        writer.join(30)
        assert writer.exitcode == 0
    assert list(tmp_path.iterdir()) == [path]
