"""`drivetrain data prepare`: text in, a token file out, mistakes in words."""

from __future__ import annotations

import json

import pytest

from drivetrain.data.token_file import open_tokens


@pytest.fixture
def texts(folder):
    (folder / "texts").mkdir()
    (folder / "texts" / "a.txt").write_text("one\n")
    (folder / "texts" / "b.md").write_text("two\n")
    (folder / "texts" / "c.bin").write_bytes(b"\0\1")
    return folder / "texts"


def test_a_folder_becomes_a_token_file(cli, texts, folder):
    shown = cli("data", "prepare", "--text", "texts", "-o", "o.tokens")
    assert shown.code == 0
    assert shown.out.splitlines() == [
        "o.tokens: 10 tokens in 2 documents (bytes, vocabulary 256), 0.0 MB",
        "left out: 1 binary files, 0 empty ones",
    ]
    assert bytes(open_tokens(folder / "o.tokens").tokens.tolist()) == b"one\n\0two\n\0"


def test_json_says_what_was_written(cli, texts):
    shown = cli("data", "prepare", "--text", "texts/b.md", "texts/a.txt", "-o", "o.tokens", "--json")
    facts = json.loads(shown.out)
    assert (facts["num_tokens"], facts["num_documents"], facts["binary"]) == (10, 2, 0)
    assert (facts["path"], facts["tokenizer"], facts["token_bytes"]) == ("o.tokens", "bytes", 1)


def test_patterns_choose_files_of_folders(cli, texts):
    shown = cli("data", "prepare", "--text", "texts", "--glob", "*.md", "-o", "o.tokens", "--json")
    assert json.loads(shown.out)["num_documents"] == 1


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("texts", "-o", "o"), "add --text"),
        (("--text", "none", "-o", "o"), "no such file or folder"),
        (("--text", "texts/c.bin", "-o", "o"), "no text"),
        (("--text", "texts", "-o", "no/o"), "token file no/o"),
        (("--text", "texts", "-o", "o", "--tokenizer", "words"), "tokenizer words"),
        (("--text", "texts"), "Missing option"),
        (("--text", "-o", "o"), "Missing argument"),
    ],
)
def test_mistakes_end_with_code_2_and_leave_nothing(cli, texts, folder, args, text):
    shown = cli("data", "prepare", *args)
    assert shown.code == 2
    assert text in shown.err
    assert [path.name for path in folder.iterdir()] == ["texts"]
