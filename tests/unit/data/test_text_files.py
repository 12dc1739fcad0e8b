"""Text to token files: which files, by which tokenizer, and Python's own source where none is given."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import stat
import sysconfig
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from drivetrain.data import stdlib_corpus as corpus
from drivetrain.data.text_files import find_text_files, prepare_text
from drivetrain.data.token_file import open_tokens, read_header
from drivetrain.data.token_places import token_places
from drivetrain.data.tokenizers import ByteTokenizer, open_tokenizer
from drivetrain.spec.errors import InputError


@pytest.fixture
def texts(tmp_path):
    root = tmp_path / "texts"
    for name, content in {
        "b.txt": b"second\n",
        "a.txt": b"first\n",
        "sub/c.md": "dritte Zeile: äöü\n".encode(),
        "sub/.hidden": b"no",
        ".git/config": b"no",
        "image.png": b"\x89PNG\0\0",
        "nothing.txt": b"",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def documents_of(path):
    opened = open_tokens(path)
    ends = opened.boundaries.astype(int).tolist()
    return [bytes(opened.tokens[start : end - 1].tolist()) for start, end in pairwise(ends)]


def test_each_text_file_is_a_document_in_order_of_names(texts, tmp_path):
    done = prepare_text(find_text_files([texts]), tmp_path / "o.tokens", ByteTokenizer())
    assert documents_of(done.path) == [b"first\n", b"second\n", "dritte Zeile: äöü\n".encode()]
    assert (done.num_binary, done.num_empty) == (1, 1)
    assert done.header.tokenizer == "bytes"
    assert done.header.token_bytes == 1


def test_files_are_taken_as_given_and_folders_by_pattern(texts):
    assert [p.name for p in find_text_files([texts], pattern="*.md")] == ["c.md"]
    given = [texts / "b.txt", texts / "a.txt"]
    assert find_text_files(given, pattern="*.md") == given
    with pytest.raises(InputError, match="no such file or folder"):
        find_text_files([texts / "none"])
    with pytest.raises(InputError, match=r"no file there matches \*.rst"):
        find_text_files([texts], pattern="*.rst")


def test_a_path_is_a_token_file_or_a_folder_with_two(tmp_path):
    assert token_places(tmp_path / "x.tokens") == (tmp_path / "x.tokens",)
    with pytest.raises(InputError, match=r"no train\.tokens"):
        token_places(tmp_path)
    (tmp_path / "train.tokens").touch()
    assert [p.name for p in token_places(tmp_path)] == ["train.tokens"]
    (tmp_path / "val.tokens").touch()
    assert [p.name for p in token_places(tmp_path)] == ["train.tokens", "val.tokens"]


# -- tokenizers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "library"), [("t.json", "tokenizers"), ("tiktoken:gpt2", "tiktoken")])
def test_a_tokenizer_without_its_library_says_what_to_install(tmp_path, monkeypatch, name, library):
    (tmp_path / "t.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda wanted: None)
    with pytest.raises(InputError, match=f"{library}, which reads it, is not installed") as caught:
        open_tokenizer(name)
    assert "drivetrain[tokenizers]" in caught.value.do


@pytest.mark.parametrize("name", ["gpt2", "none.json", "vocab.bpe"])
def test_what_is_no_tokenizer_is_refused(name):
    with pytest.raises(InputError, match=f"tokenizer {name}"):
        open_tokenizer(name)
    with pytest.raises(InputError, match="has its own"):
        open_tokenizer("bytes", separator="</s>")


def test_a_hugging_face_tokenizers_ids_are_written(texts, tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="an extra: drivetrain[tokenizers]")
    vocab = {"<unk>": 0, "first": 1, "second": 2, "</s>": 70_000}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "t.json"))
    tokenizer = open_tokenizer(str(tmp_path / "t.json"))
    done = prepare_text(find_text_files([texts], pattern="[ab].txt"), tmp_path / "o", tokenizer)
    assert open_tokens(done.path).tokens.tolist() == [1, 70_000, 2, 70_000]
    assert (done.header.token_bytes, done.header.vocab_size) == (4, 70_001)
    assert open_tokenizer(str(tmp_path / "t.json"), separator="second").separator == 2
    with pytest.raises(InputError, match="has no '<pad>'"):
        open_tokenizer(str(tmp_path / "t.json"), separator="<pad>")
    (tmp_path / "bad.json").write_text(json.dumps({"model": 1}))
    with pytest.raises(InputError, match=r"bad\.json"):
        open_tokenizer(str(tmp_path / "bad.json"))


def test_a_tiktoken_encodings_ids_are_written(texts, tmp_path, monkeypatch):
    tiktoken = pytest.importorskip("tiktoken", reason="an extra: drivetrain[tokenizers]")
    made = tiktoken.Encoding(
        "single_bytes",
        pat_str=r"\w+|\W",
        mergeable_ranks={bytes([b]): b for b in range(256)} | {b"fi": 256},
        special_tokens={"<|endoftext|>": 257},
    )
    # Its own vocabularies come over the network, which a test has not.
    monkeypatch.setattr(tiktoken, "get_encoding", {"single_bytes": made}.__getitem__)
    done = prepare_text([texts / "a.txt"], tmp_path / "o", open_tokenizer("tiktoken:single_bytes"))
    assert open_tokens(done.path).tokens.tolist() == [256, *b"rst\n", 257]
    assert done.header.vocab_size == 258
    with pytest.raises(InputError, match="it knows"):
        open_tokenizer("tiktoken:none")


# -- the default corpus ------------------------------------------------------------------------------------


def corpus_in(folder, max_bytes=300_000):
    return corpus.stdlib_corpus(max_bytes=max_bytes, environ={"XDG_CACHE_HOME": str(folder)})


def test_the_default_corpus_is_pythons_own_source_up_to_a_size(tmp_path):
    path = corpus_in(tmp_path)
    assert path.parent == tmp_path / "drivetrain"
    documents = documents_of(path)
    assert 200_000 < sum(map(len, documents)) <= 300_000
    library = Path(sysconfig.get_path("stdlib"))
    source = {p.read_bytes() for p in library.rglob("*.py") if p.stat().st_size <= 300_000}
    assert set(documents) <= source
    larger = corpus_in(tmp_path, max_bytes=600_000)
    assert larger != path


def test_it_is_made_once_and_again_where_it_was_damaged(tmp_path):
    path = corpus_in(tmp_path)
    made = path.stat()
    assert corpus_in(tmp_path).stat().st_mtime_ns == made.st_mtime_ns
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    assert corpus_in(tmp_path).read_bytes() == whole


def _make(folder, queue):
    queue.put(str(corpus_in(folder)))


def test_many_processes_may_ask_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_make, args=(tmp_path, queue)) for _ in range(4)]
    for process in processes:
        process.start()
    places = {queue.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert len(places) == 1
    assert read_header(places.pop()).num_documents > 1
    assert len(list((tmp_path / "drivetrain").iterdir())) == 1


def test_without_a_cache_it_lies_in_a_private_temporary_folder(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = corpus_in(blocked)
    assert path.parent == tmp_path / f"drivetrain-{os.getuid()}"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_python_without_source_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(InputError, match="there is none"):
        corpus_in(tmp_path)


def test_the_byte_tokenizer_reads_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("drivetrain.data.tokenizers._CHUNK_BYTES", 10)
    (tmp_path / "a.txt").write_bytes(bytes(range(1, 256)))
    pieces = list(ByteTokenizer().encode_file(tmp_path / "a.txt"))
    assert [len(piece) for piece in pieces] == [10] * 25 + [5]
    assert np.concatenate(pieces).tolist() == list(range(1, 256))
