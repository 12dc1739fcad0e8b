"""Stopped and resumed in mid-epoch: the same samples follow, and the weights are the same to the bit."""

import pytest
import torch

import rank_programs as programs

STEPS, STOP = 13, 6


def stopped_and_resumed(ranks, world_size, folder, **options):
    whole = ranks.run(world_size, programs.train, steps=STEPS, **options)
    ranks.run(world_size, programs.train, steps=STOP, output=str(folder), save_every=STOP, **options)
    rest = ranks.run(world_size, programs.train, steps=STEPS, output=str(folder), save_every=STOP, **options)
    return whole, rest


@pytest.mark.parametrize(
    ("world_size", "options"),
    [
        (1, {"ema_decay": 0.9, "clip_norm": 0.5}),
        (2, {"optimizer": "sgd", "micro_batch": 2}),
        (2, {"net": {"norm": "batch", "dropout": 0.3}, "precision": "bf16"}),
        (3, {"net": {"norm": "batch", "dropout": 0.3}, "ema_decay": 0.9}),
        (3, {"precision": "fp16", "clip_norm": 0.5}),
    ],
)
def test_the_rest_is_the_same_to_the_bit(ranks, tmp_path, world_size, options):
    whole, rest = stopped_and_resumed(ranks, world_size, tmp_path, **options)
    expected = {i: rows for i, rows in programs.samples_by_step(whole).items() if i >= STOP}
    assert programs.samples_by_step(rest) == expected
    for undisturbed, resumed in zip(whole, rest, strict=True):
        assert resumed["first_step"] == STOP
        assert resumed["losses"] == undisturbed["losses"][STOP:]
        assert resumed["scale"] == undisturbed["scale"]
        for kind in ("weights", "ema"):
            assert undisturbed[kind].keys() == resumed[kind].keys()
            for name, weight in undisturbed[kind].items():
                assert torch.equal(resumed[kind][name], weight), f"{kind} {name}"


def test_a_checkpoint_of_three_ranks_goes_on_with_two(ranks, tmp_path):
    whole = ranks.run(3, programs.train, steps=STEPS)
    ranks.run(3, programs.train, steps=STOP, output=str(tmp_path), save_every=STOP)
    rest = ranks.run(2, programs.train, steps=STEPS, output=str(tmp_path))
    expected = {i: rows for i, rows in programs.samples_by_step(whole).items() if i >= STOP}
    assert programs.samples_by_step(rest) == expected
    assert rest[0]["losses"] == pytest.approx(whole[0]["losses"][STOP:], rel=1e-4)
    assert any("written by 3 ranks" in note for note in rest[0]["notes"])


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(ranks, tmp_path):
    ranks.run(1, programs.train, steps=8, output=str(tmp_path), save_every=4)
    victim = next((tmp_path / "checkpoints" / "step-00000008").glob("*.distcp"))
    victim.write_bytes(victim.read_bytes()[:-1] + b"!")
    results = ranks.run(2, programs.train, steps=9, output=str(tmp_path))
    assert results[0]["first_step"] == 4
    assert any("step-00000008 is damaged" in note for note in results[0]["notes"])


def test_another_models_checkpoint_is_refused_by_name(ranks, tmp_path):
    ranks.run(1, programs.train, steps=2, output=str(tmp_path), save_every=2)
    text = ranks.run(
        1,
        programs.failing,
        expected="InputError",
        steps=4,
        output=str(tmp_path),
        net={"unused": True},
    )[0]
    assert "another model's checkpoint" in text
    assert "unused.weight is missing" in text


def test_another_global_batch_or_optimizer_is_refused(ranks, tmp_path):
    ranks.run(1, programs.train, steps=2, output=str(tmp_path), save_every=2)
    text = ranks.run(
        1, programs.failing, expected="InputError", steps=4, output=str(tmp_path), optimizer="sgd"
    )[0]
    assert "trained with AdamW" in text
