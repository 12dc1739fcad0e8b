"""Stopped and resumed in mid-epoch: the same samples follow, and the weights are the same to the bit."""

import itertools

import pytest

import rank_programs as programs
from ranks.strategy_contract import assert_same_bits

STEPS, STOP = 13, 6


# With a moving average, dropout and running statistics: in the strategies' contract.
@pytest.mark.parametrize(
    ("world_size", "options"),
    [
        (1, {"ema_decay": 0.9, "clip_norm": 0.5}),
        (2, {"optimizer": "sgd", "micro_batch": 2}),
        (3, {"precision": "fp16", "clip_norm": 0.5}),
        (3, {"static_graph": True}),
    ],
)
def test_the_rest_is_the_same_to_the_bit(ranks, tmp_path, world_size, options):
    whole = ranks.run(world_size, programs.train, steps=STEPS, **options)
    ranks.run(world_size, programs.train, steps=STOP, output=str(tmp_path), save_every=STOP, **options)
    rest = ranks.run(world_size, programs.train, steps=STEPS, output=str(tmp_path), **options)
    assert_same_bits(rest, whole, first_step=STOP)


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


def names_of(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_going_back_to_an_earlier_checkpoint_keeps_what_is_saved_from_there(ranks, tmp_path):
    ranks.run(1, programs.train, steps=12, output=str(tmp_path), save_every=4, keep=3)
    back = str(tmp_path / "checkpoints" / "step-00000004")
    ranks.run(1, programs.train, steps=7, output=str(tmp_path), save_every=1, keep=2, resume=back)
    assert names_of(tmp_path) == ["latest", "step-00000006", "step-00000007"]
    assert (tmp_path / "checkpoints" / "latest").resolve().name == "step-00000007"
    # And the next start goes on from there, not from the abandoned step 12.
    assert ranks.run(1, programs.train, steps=8, output=str(tmp_path))[0]["first_step"] == 7


def test_a_damaged_newer_checkpoint_never_outlives_the_good_ones(ranks, tmp_path):
    ranks.run(1, programs.train, steps=8, output=str(tmp_path), save_every=4)
    victim = next((tmp_path / "checkpoints" / "step-00000008").glob("*.distcp"))
    victim.write_bytes(b"")
    ranks.run(1, programs.train, steps=6, output=str(tmp_path), save_every=2, keep=1)
    assert names_of(tmp_path) == ["latest", "step-00000006"]


def test_a_new_run_is_refused_where_one_has_saved(ranks, tmp_path):
    ranks.run(1, programs.train, steps=2, output=str(tmp_path), save_every=2)
    text = ranks.run(
        1, programs.failing, expected="InputError", steps=4, output=str(tmp_path), resume="none"
    )[0]
    assert "has saved checkpoints there" in text


def test_hyperparameters_of_the_new_start_hold_and_are_said(ranks, tmp_path):
    ranks.run(1, programs.train, steps=4, output=str(tmp_path), save_every=4)
    changed = ranks.run(1, programs.train, steps=8, output=str(tmp_path), weight_decay=0.5)[0]
    same = ranks.run(1, programs.train, steps=8, output=str(tmp_path))[0]
    assert any("weight_decay is 0.5 from here on; it was 0.01" in note for note in changed["notes"])
    assert any("the run now ends after 8 steps" in note for note in changed["notes"])
    assert changed["losses"][0] == same["losses"][0]
    assert changed["losses"][-1] != same["losses"][-1]


def test_another_seed_is_refused(ranks, tmp_path):
    ranks.run(1, programs.train, steps=2, output=str(tmp_path), save_every=2)
    text = ranks.run(1, programs.failing, expected="InputError", steps=4, output=str(tmp_path), seed=4)[0]
    assert "trained with 3" in text


def test_a_checkpoint_by_time_is_saved_once_each_time(ranks, tmp_path):
    result = ranks.run(2, programs.train, steps=60, output=str(tmp_path), every_minutes=0.01, pause_s=0.05)
    steps = result[0]["saved"]
    assert 2 <= len(steps) <= 6
    assert all(later - earlier > 2 for earlier, later in itertools.pairwise(steps))
    assert result[1]["saved"] == steps


def test_a_weight_average_that_is_not_gone_on_with_is_said(ranks, tmp_path):
    ranks.run(1, programs.train, steps=2, output=str(tmp_path), save_every=2, ema_decay=0.9)
    notes = ranks.run(1, programs.train, steps=3, output=str(tmp_path))[0]["notes"]
    assert any("has a weight average, which this run does not go on with" in note for note in notes)


def test_another_order_of_samples_is_refused(ranks, tmp_path):
    ranks.run(1, programs.train, steps=2, output=str(tmp_path), save_every=2)
    text = ranks.run(
        1, programs.failing, expected="InputError", steps=4, output=str(tmp_path), shuffle=False
    )[0]
    assert "other samples would follow" in text
