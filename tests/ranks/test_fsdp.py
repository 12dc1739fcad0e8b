"""fsdp: the same training as on one rank, in less memory; checkpoints that other strategies read."""

import pytest
import torch

import rank_programs as programs

STEPS, STOP = 13, 6


@pytest.fixture(scope="module")
def alone(ranks):
    return ranks.run(1, programs.train, steps=STEPS, clip_norm=0.5, net={"repeats": 2})


@pytest.mark.parametrize(
    ("world_size", "options"),
    [
        (1, {}),
        (2, {"micro_batch": 2}),
        (3, {}),
        (4, {"mesh": {"dp_replicate": 2}}),
        (2, {"fsdp_reshard_after_forward": False, "activation_checkpointing": 1}),
    ],
)
def test_sharded_training_is_the_same(ranks, alone, world_size, options):
    results = ranks.run(
        world_size, programs.train, steps=STEPS, clip_norm=0.5, net={"repeats": 2}, strategy="fsdp", **options
    )
    assert programs.samples_by_step(results) == programs.samples_by_step(alone)
    for result in results:
        assert result["losses"] == pytest.approx(alone[0]["losses"], rel=1e-5)
        for name, weight in alone[0]["weights"].items():
            torch.testing.assert_close(result["weights"][name], weight, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("options", [{"ema_decay": 0.9}, {"precision": "bf16"}])
def test_a_resumed_run_is_the_same_to_the_bit(ranks, tmp_path, options):
    options = {"strategy": "fsdp", "net": {"repeats": 2, "norm": "batch"}, **options}
    whole = ranks.run(3, programs.train, steps=STEPS, **options)
    ranks.run(3, programs.train, steps=STOP, output=str(tmp_path), save_every=STOP, **options)
    rest = ranks.run(3, programs.train, steps=STEPS, output=str(tmp_path), **options)
    assert rest[0]["losses"] == whole[0]["losses"][STOP:]
    for kind in ("weights", "ema"):
        for name, weight in whole[0][kind].items():
            assert torch.equal(rest[0][kind][name], weight), f"{kind} {name}"


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (("single", 1), ("fsdp", 3)),
        (("fsdp", 3), ("ddp", 2)),
        (("ddp", 2), ("fsdp", 2)),
        (("fsdp", 2), ("single", 1)),
    ],
)
def test_a_checkpoint_of_one_strategy_goes_on_under_another(ranks, tmp_path, alone, first, then):
    options = {"clip_norm": 0.5, "net": {"repeats": 2}}
    (name, size), (other, other_size) = first, then
    ranks.run(
        size, programs.train, steps=STOP, output=str(tmp_path), save_every=STOP, strategy=name, **options
    )
    rest = ranks.run(other_size, programs.train, steps=STEPS, output=str(tmp_path), strategy=other, **options)
    assert rest[0]["first_step"] == STOP
    assert rest[0]["losses"] == pytest.approx(alone[0]["losses"][STOP:], rel=1e-5)


def test_evaluation_with_averaged_weights_leaves_training_as_it_was(ranks):
    options = {"steps": STEPS, "strategy": "fsdp", "ema_decay": 0.5, "net": {"repeats": 2}}
    plain = ranks.run(2, programs.train, **options)
    evaluated = ranks.run(2, programs.train, evaluate_every=3, **options)
    assert evaluated[0]["losses"] == plain[0]["losses"]
