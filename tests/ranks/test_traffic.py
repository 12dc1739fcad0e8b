"""The bytes that strategies really send are those of their formulas."""

import pytest

import text_programs
from drivetrain.bench.traffic import FP32, sent_bytes
from drivetrain.bench.traffic_worker import measure
from drivetrain.config.schema import RunConfig
from drivetrain.train.models.gpt_config import num_parameters


def measured(*, folder, **options):
    return measure(
        RunConfig.model_validate(
            {
                "model": {"name": "gpt", "kwargs": text_programs.TINY},
                "data": {"kind": "text", "path": f"{folder}/corpus.tokens", "sequence_length": 16},
                "global_batch": 8,
                "epochs": None,
                "max_steps": 1,
                "device": "cpu",
                "optim": {"clip_norm": 1.0},
                **options,
            }
        )
    )


@pytest.mark.parametrize(
    ("world_size", "options"),
    [
        (2, {"strategy": "ddp", "micro_batch": 2}),
        (2, {"strategy": "fsdp", "micro_batch": 2}),
        (2, {"strategy": "fsdp", "precision": "bf16", "fsdp": {"reshard_after_forward": False}}),
        (4, {"strategy": "fsdp", "mesh": {"dp_replicate": 2}}),
    ],
)
def test_counted_bytes_are_the_formulas(ranks, tmp_path, world_size, options):
    text_programs.write_corpus(tmp_path / "corpus.tokens")
    for result in ranks.run(world_size, measured, timeout_s=150, folder=str(tmp_path), **options):
        assert sum(result.sent.values()) == pytest.approx(result.expected, rel=0.01)
        # The control word is apart, and small.
        assert 0 < result.other < 1000
        assert result.state_bytes > 0
        assert result.peak_bytes > 0
        assert result.samples_per_s == pytest.approx(8 / result.step_s)


def test_one_rank_sends_nothing(ranks, tmp_path):
    text_programs.write_corpus(tmp_path / "corpus.tokens")
    (result,) = ranks.run(1, measured, timeout_s=150, folder=str(tmp_path), strategy="single")
    assert (result.sent, result.expected, result.other) == ({}, 0, 0)


def test_ddp_sends_its_gradients_once_however_many_micro_batches(ranks, tmp_path):
    text_programs.write_corpus(tmp_path / "corpus.tokens")
    shape = text_programs.SHAPE
    (result, _) = ranks.run(2, measured, timeout_s=150, folder=str(tmp_path), strategy="ddp", micro_batch=1)
    assert result.sent["all_reduce"] == pytest.approx(
        sent_bytes("all_reduce", FP32 * num_parameters(shape), 2), rel=0.01
    )
