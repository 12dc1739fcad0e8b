"""Sequences of packed documents: exact positions, whole documents in one split, nothing held in memory."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch

from drivetrain.data.fingerprint import explain_change, fingerprint
from drivetrain.data.stream import Stream
from drivetrain.data.token_file import TokenWriter, open_tokens
from drivetrain.data.tokens import TokenDataset
from drivetrain.data.workers import LoaderPlan
from drivetrain.spec.batch import plan_batches
from drivetrain.spec.errors import InputError


@pytest.fixture
def path(tmp_path):
    """300 documents of 1 to 60 tokens; each token is its document's number plus 1."""
    generator = np.random.default_rng(0)
    path = tmp_path / "corpus.tokens"
    with TokenWriter(path, vocab_size=400, separator=0, tokenizer="ours") as writer:
        for number in range(300):
            writer.append(np.full(generator.integers(1, 61), number + 1))
            writer.end_document()
    return path


def packed(dataset):
    """All tokens of the split, from its samples."""
    inputs = torch.cat([dataset[i][0] for i in range(len(dataset))])
    return torch.cat([inputs, dataset[len(dataset) - 1][1][-1:]])


def test_a_sample_is_its_place_in_the_packed_stream(path):
    tokens = open_tokens(path).tokens
    dataset = TokenDataset(path, sequence_length=32)
    assert len(dataset) == (len(tokens) - 1) // 32
    for index in (0, 1, 77, len(dataset) - 1):
        inputs, targets = dataset[index]
        assert (inputs.dtype, inputs.shape, targets.shape) == (torch.int64, (32,), (32,))
        assert inputs.tolist() == tokens[32 * index : 32 * index + 32].tolist()
        assert targets.tolist() == tokens[32 * index + 1 : 32 * index + 33].tolist()
    with pytest.raises(IndexError):
        dataset[len(dataset)]


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5])
def test_each_document_is_whole_in_one_split(path, fraction):
    splits = {
        name: TokenDataset(path, sequence_length=1, split=name, val_fraction=fraction)
        for name in ("train", "val")
    }
    opened = open_tokens(path)
    lengths = np.diff(opened.boundaries.astype(np.int64)) - 1
    seen = {}
    for name, dataset in splits.items():
        numbers, counts = np.unique(packed(dataset).numpy(), return_counts=True)
        seen[name] = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        separators = seen[name].pop(0)
        assert separators == len(seen[name])
        for number, num_tokens in seen[name].items():
            assert num_tokens == lengths[number - 1]
    assert seen["train"].keys() & seen["val"].keys() == set()
    assert len(seen["train"]) + len(seen["val"]) == 300
    share = splits["val"].num_tokens / opened.header.num_tokens
    assert share == pytest.approx(fraction, rel=0.5)


def test_a_split_does_not_move_with_the_sequence_length(path):
    short, long = (TokenDataset(path, sequence_length=n, split="val") for n in (7, 64))
    n = min(len(short) * 7, len(long) * 64)
    assert torch.equal(packed(short)[:n], packed(long)[:n])


def test_positions_are_the_same_on_any_number_of_ranks(path):
    dataset = TokenDataset(path, sequence_length=16, split="train")

    def global_batches(num_ranks):
        plan = plan_batches(global_batch=7, num_data_ranks=num_ranks)
        streams = [
            Stream(
                dataset, plan=plan, data_rank=rank, seed=5, loader=LoaderPlan(), device=torch.device("cpu")
            )
            for rank in range(num_ranks)
        ]
        for _ in range(4):
            parts = [micro for stream in streams for micro in next(stream).micro_batches]
            yield torch.cat([micro.ids for micro in parts]), torch.cat([micro.y for micro in parts])

    for (ids, targets), (other_ids, other_targets) in zip(global_batches(1), global_batches(3), strict=True):
        assert torch.equal(ids, other_ids)
        assert torch.equal(targets, other_targets)
        assert torch.equal(targets, torch.stack([dataset[i][1] for i in ids.tolist()]))


def test_it_pickles_small_and_serves_forked_processes(path):
    dataset = TokenDataset(path, sequence_length=32)
    expected = dataset[5]
    raw = pickle.dumps(dataset)
    assert len(raw) < 2500
    assert torch.equal(pickle.loads(raw)[5][0], expected[0])
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(dataset[5][1], expected[1]) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_file_replaced_before_it_was_first_read_is_refused(path):
    dataset = TokenDataset(path, sequence_length=8)
    with TokenWriter(path, vocab_size=400, separator=0, tokenizer="ours") as writer:
        writer.append(np.arange(9000) % 399)
    with pytest.raises(InputError, match="replaced while in use"):
        dataset[0]


def test_memory_does_not_grow_with_documents(tmp_path):
    path = tmp_path / "many.tokens"
    with TokenWriter(path, vocab_size=256, separator=0, tokenizer="bytes") as writer:
        for number in range(5000):
            writer.append(np.full(4, number % 255 + 1))
            writer.end_document()
    dataset = TokenDataset(path, sequence_length=8, split="train")
    assert len(dataset._starts) <= 1024
    assert len(dataset) == (dataset.num_tokens - 1) // 8
    assert dataset.num_tokens == pytest.approx(0.9 * 25_000, rel=0.01)


def test_the_fingerprint_changes_with_content_length_and_split(path, tmp_path):
    other = tmp_path / "other.tokens"
    with TokenWriter(other, vocab_size=400, separator=0, tokenizer="ours") as writer:
        writer.append(np.arange(9000) % 399)
    variants = [
        TokenDataset(path, sequence_length=32),
        TokenDataset(path, sequence_length=33),
        TokenDataset(path, sequence_length=32, split="train"),
        TokenDataset(path, sequence_length=32, split="train", val_fraction=0.2),
        TokenDataset(other, sequence_length=32),
    ]
    assert len({fingerprint(dataset) for dataset in variants}) == len(variants)
    copied = tmp_path / "copied.tokens"
    copied.write_bytes(path.read_bytes())
    assert fingerprint(TokenDataset(copied, sequence_length=32)) == fingerprint(variants[0])
    assert "samples" in explain_change(fingerprint(variants[0]), fingerprint(variants[1]))


def test_too_little_text_is_refused_and_an_empty_held_out_split_is_not(tmp_path):
    path = tmp_path / "short.tokens"
    with TokenWriter(path, vocab_size=256, separator=0, tokenizer="bytes") as writer:
        writer.append(np.arange(1, 20))
    with pytest.raises(InputError, match="its text has 20 tokens"):
        TokenDataset(path, sequence_length=20)
    assert len(TokenDataset(path, sequence_length=19)) == 1
    assert len(TokenDataset(path, sequence_length=4, split="train")) == 4
    assert len(TokenDataset(path, sequence_length=4, split="val")) == 0  # one document is not cut
