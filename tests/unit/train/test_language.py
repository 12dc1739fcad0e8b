"""The task of a run file on text: data, model, loss and metrics fit each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from drivetrain.config.schema import RunConfig
from drivetrain.data.batch import MicroBatch
from drivetrain.data.collate import collate
from drivetrain.data.token_file import TokenWriter
from drivetrain.engine.objective import call_model
from drivetrain.spec.errors import InputError
from drivetrain.train.language import language_task
from drivetrain.train.task_by_kind import task_of

TINY = {"num_layers": 1, "width": 16, "num_heads": 2, "ffn_width": 32}


def write(path, *, vocab_size=61, documents=40):
    with TokenWriter(path, vocab_size=vocab_size, separator=0, tokenizer="ours") as writer:
        for number in range(documents):
            writer.append(np.arange(number, number + 30) % (vocab_size - 1) + 1)
            writer.end_document()


def config_of(path, *, kwargs=TINY, **data):
    return RunConfig.model_validate(
        {
            "model": {"name": "gpt", "kwargs": kwargs},
            "data": {"kind": "text", "path": str(path), "sequence_length": 16, **data},
        }
    )


def micro(dataset, ids=(0, 5, 7)):
    places = torch.tensor(ids)
    return MicroBatch(
        data=collate([dataset[i] for i in ids], ids, dataset),
        weight=torch.ones(len(ids)),
        num_valid=float(len(ids)),
        ids=places,
        positions=places,
    )


def test_losses_are_sums_of_tokens_and_weights_their_number(tmp_path):
    write(tmp_path / "a.tokens")
    task = task_of(config_of(tmp_path / "a.tokens"))
    batch, model = micro(task.train_data), task.build_model()
    loss = task.objective.loss_sum(call_model(model, task.objective.inputs(batch)), batch)
    logits = model(batch.x)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.y.flatten(), reduction="sum")
    torch.testing.assert_close(loss, expected)
    assert task.objective.weight_of(batch) == 3 * 16
    # What a last stage without targets gives.
    torch.testing.assert_close(task.objective.loss_sum(logits, batch), expected)


def test_perplexity_is_e_to_the_mean_loss_of_a_token_over_all_batches(tmp_path):
    write(tmp_path / "a.tokens")
    task = language_task(config_of(tmp_path / "a.tokens"))
    batch, model = micro(task.train_data), task.build_model()
    output = call_model(model, task.objective.inputs(batch)).detach()
    metric = task.build_metrics()["perplexity"]
    task.update_metric(metric, output, batch)
    task.update_metric(metric, 2 * output, batch)
    assert float(metric.compute()) == pytest.approx(math.exp(1.5 * float(output.sum()) / 48))


def test_padding_does_not_count_in_a_metric(tmp_path):
    write(tmp_path / "a.tokens")
    task = language_task(config_of(tmp_path / "a.tokens"))
    batch = micro(task.train_data)
    batch.weight[1] = 0.0
    metric = task.build_metrics()["perplexity"]
    task.update_metric(metric, torch.tensor([16.0, 1e9, 32.0]), batch)
    assert float(metric.compute()) == pytest.approx(math.exp(1.5))


def test_the_vocabulary_is_the_texts_unless_a_larger_one_is_set(tmp_path):
    write(tmp_path / "a.tokens")
    built = [
        language_task(config_of(tmp_path / "a.tokens", kwargs=kwargs)).build_model().config
        for kwargs in (TINY, {**TINY, "vocab_size": 100, "max_sequence_length": 40})
    ]
    assert [(c.vocab_size, c.max_sequence_length) for c in built] == [(61, 16), (100, 40)]


@pytest.mark.parametrize("wrong", [{"vocab_size": 60}, {"max_sequence_length": 15}])
def test_a_model_too_small_for_the_text_is_refused(tmp_path, wrong):
    write(tmp_path / "a.tokens")
    with pytest.raises(InputError, match="61 different tokens, in sequences of 16"):
        language_task(config_of(tmp_path / "a.tokens", kwargs={**TINY, **wrong}))


def test_a_folder_may_hold_its_own_held_out_text(tmp_path):
    write(tmp_path / "train.tokens", documents=20)
    write(tmp_path / "val.tokens", documents=4, vocab_size=70)
    task = language_task(config_of(tmp_path))
    assert task.train_data.num_tokens == 20 * 31
    assert task.eval_data.num_tokens == 4 * 31
    assert task.build_model().config.vocab_size == 70


def test_held_out_text_too_short_for_a_sequence_is_said(tmp_path):
    write(tmp_path / "a.tokens", documents=1)
    task = language_task(config_of(tmp_path / "a.tokens"))
    assert task.eval_data is None
    assert "nothing is evaluated" in task.notes[-1]


def test_without_a_path_it_is_pythons_own_source(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = config_of("x", max_bytes=200_000)
    config = config.model_copy(update={"data": config.data.model_copy(update={"path": None})})
    task = language_task(config)
    assert 100_000 < task.train_data.num_tokens + task.eval_data.num_tokens < 210_000
    assert task.train_data.header.tokenizer == "bytes"


def test_unknown_kwargs_are_named(tmp_path):
    write(tmp_path / "a.tokens")
    with pytest.raises(InputError, match="did you mean num_layers"):
        language_task(config_of(tmp_path / "a.tokens", kwargs={**TINY, "n_layers": 2}))
