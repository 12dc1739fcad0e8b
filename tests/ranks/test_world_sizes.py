"""Global batches and what may be missing in them: samples, gradients, a rank's interest in the loss. That the
number of ranks changes nothing is in the strategies' contract."""

import pytest

import rank_programs as programs
from ranks.strategy_contract import assert_same_training, assert_same_weights

STEPS = 14  # more than two epochs of 52 samples in batches of 8


@pytest.fixture(scope="module")
def alone(ranks):
    return ranks.run(1, programs.train, steps=STEPS, clip_norm=0.5)


def test_every_global_batch_holds_each_position_once(alone):
    for index, rows in programs.samples_by_step(alone).items():
        assert [position for position, _, _ in rows] == list(range(8 * index, 8 * index + 8))
    epoch = [i for rows in programs.samples_by_step(alone).values() for _, i, _ in rows][:52]
    assert sorted(epoch) == list(range(52))


def test_accumulation_changes_nothing(ranks, alone):
    results = ranks.run(1, programs.train, steps=STEPS, clip_norm=0.5, micro_batch=3)
    assert results[0]["accumulation"] == 3
    assert_same_training(results, alone[0], steps=range(STEPS))
    assert_same_weights(results, alone[0])


def test_parameters_without_gradient_are_found_and_said(ranks):
    results = ranks.run(2, programs.train, steps=3, net={"unused": True})
    reference = ranks.run(1, programs.train, steps=3, net={"unused": True})
    assert results[0]["losses"] == pytest.approx(reference[0]["losses"], rel=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_step_of_bad_samples_alone_changes_nothing(ranks, precision):
    """Clipping, the loss scaler and the optimizer leave a step without any gradient alone."""
    everything = {"bad": tuple(range(1, 52))}
    results = ranks.run(
        2, programs.train, steps=4, data=everything, on_bad_sample="skip", clip_norm=0.5, precision=precision
    )
    assert [len(result["losses"]) for result in results] == [4, 4]


def test_one_rank_alone_may_read_the_loss(ranks, alone):
    results = ranks.run(
        3, programs.train, steps=STEPS, clip_norm=0.5, only_first_reads_loss=True, on_bad_sample="skip"
    )
    assert results[0]["losses"] == pytest.approx(alone[0]["losses"], rel=1e-5)
    assert results[1]["losses"] == []


def test_an_own_inner_loop_copes_with_unused_parameters_when_told(ranks):
    options = {"steps": 3, "net": {"unused": True}, "own_loop": True}
    results = ranks.run(2, programs.train, find_unused_parameters=True, **options)
    reference = ranks.run(1, programs.train, **options)
    assert results[0]["losses"] == pytest.approx(reference[0]["losses"], rel=1e-5)
