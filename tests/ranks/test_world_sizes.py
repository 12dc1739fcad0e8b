"""One global batch on 1, 2 and 3 ranks: the same samples, augmentation, losses and weights."""

import pytest
import torch

import rank_programs as programs

STEPS = 14  # more than two epochs of 52 samples in batches of 8


@pytest.fixture(scope="module")
def alone(ranks):
    return ranks.run(1, programs.train, steps=STEPS, clip_norm=0.5)


def assert_same_run(results, reference, *, tolerance=1e-5):
    assert programs.samples_by_step(results) == programs.samples_by_step(reference)
    for result in results:
        assert result["losses"] == pytest.approx(reference[0]["losses"], rel=tolerance)
        for name, weight in reference[0]["weights"].items():
            torch.testing.assert_close(result["weights"][name], weight, rtol=1e-3, atol=tolerance)


def test_every_global_batch_holds_each_position_once(alone):
    for index, rows in programs.samples_by_step(alone).items():
        assert [position for position, _, _ in rows] == list(range(8 * index, 8 * index + 8))
    epoch = [i for rows in programs.samples_by_step(alone).values() for _, i, _ in rows][:52]
    assert sorted(epoch) == list(range(52))


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_number_of_ranks_changes_nothing(ranks, alone, world_size):
    results = ranks.run(world_size, programs.train, steps=STEPS, clip_norm=0.5)
    assert_same_run(results, alone)


@pytest.mark.parametrize(("world_size", "micro_batch"), [(1, 3), (2, 1), (3, 1)])
def test_accumulation_changes_nothing(ranks, alone, world_size, micro_batch):
    results = ranks.run(world_size, programs.train, steps=STEPS, clip_norm=0.5, micro_batch=micro_batch)
    assert results[0]["accumulation"] > 1
    assert_same_run(results, alone)


def test_an_inner_loop_of_ones_own_trains_the_same(ranks, alone):
    results = ranks.run(2, programs.train, steps=STEPS, own_loop=True, micro_batch=2)
    assert_same_run(results, alone)


def test_skipped_samples_weigh_nothing_and_ranks_stay_in_step(ranks):
    bad = {"bad": (3, 17, 30, 31)}
    one = ranks.run(1, programs.train, steps=STEPS, data=bad, on_bad_sample="skip")
    three = ranks.run(3, programs.train, steps=STEPS, data=bad, on_bad_sample="skip")
    assert_same_run(three, one)


def test_parameters_without_gradient_are_found_and_said(ranks):
    results = ranks.run(2, programs.train, steps=3, net={"unused": True})
    reference = ranks.run(1, programs.train, steps=3, net={"unused": True})
    assert results[0]["losses"] == pytest.approx(reference[0]["losses"], rel=1e-5)


@pytest.mark.parametrize("num_samples", [1, 2, 7])
def test_evaluation_counts_each_sample_once_even_with_more_ranks_than_samples(ranks, num_samples):
    one = ranks.run(1, programs.evaluate, num_samples=num_samples)[0]
    assert one["count"] == num_samples
    for result in ranks.run(3, programs.evaluate, num_samples=num_samples):
        assert result == pytest.approx(one, rel=1e-5)


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
