"""Pipelines over NCCL: on two GPUs as on one."""

import pytest
import torch

import rank_programs as programs

NUM_GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 GPUs, {NUM_GPUS} here"),
]
STEPS, STOP = 12, 6


@pytest.fixture(autouse=True)
def _fresh_processes(ranks):
    """NCCL groups of an earlier run in the same processes, once destroyed, abort a later one that sends from
    rank to rank (torch 2.11); a run of the product has processes of its own."""
    yield
    ranks.close()


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ({}, "fp32"),
        ({"pipeline_schedule": "gpipe"}, "fp32"),
        ({"pipeline_schedule": "interleaved"}, "bf16"),
        ({"pipeline_schedule": "zero_bubble", "activation_checkpointing": 1}, "fp32"),
        ({"mesh": {"pp": 1, "dp_shard": 2}}, "fp32"),
        ({"compile": True}, "bf16"),
    ],
)
def test_two_gpus_in_a_pipeline_train_and_evaluate_as_one(ranks, options, precision):
    work = {
        "steps": STEPS, "device": "cuda", "task": "text", "precision": precision, "clip_norm": 0.5,
        "ema_decay": 0.9, "micro_batch": 2, "evaluate_every": STOP, "timeout_s": 200,
    }  # fmt: skip
    one = ranks.run(1, programs.train, strategy="single", **work)[0]
    rel = 1e-3 if precision == "fp32" else 0.1
    for result in ranks.run(2, programs.train, strategy="pipeline", **work, **options):
        assert result["losses"] == pytest.approx(one["losses"], rel=rel)
        for key, values in one["evaluations"].items():
            assert result["evaluations"][key] == pytest.approx(values, rel=rel)


def test_a_pipeline_resumes_to_the_bit(ranks, tmp_path):
    work = {
        "device": "cuda", "strategy": "pipeline", "pipeline_schedule": "zero_bubble", "micro_batch": 2,
        "net": {"repeats": 4, "dropout": 0.3}, "deterministic": True, "clip_norm": 0.5, "ema_decay": 0.9,
        "timeout_s": 200,
    }  # fmt: skip
    whole = ranks.run(2, programs.train, steps=STEPS, **work)
    ranks.run(2, programs.train, steps=STOP, output=str(tmp_path), save_every=STOP, **work)
    rest = ranks.run(2, programs.train, steps=STEPS, output=str(tmp_path), **work)
    for undisturbed, resumed in zip(whole, rest, strict=True):
        assert resumed["losses"] == undisturbed["losses"][STOP:]
        for name, weight in undisturbed["weights"].items():
            assert torch.equal(resumed["weights"][name], weight), name
