"""A tiny GPT on text: the number of ranks changes nothing, and shards start as the whole does."""

from itertools import chain

import pytest
import torch

import text_programs as programs


@pytest.fixture(scope="module")
def alone(ranks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    programs.write_corpus(folder / "corpus.tokens")
    return folder, ranks.run(1, programs.train, folder=str(folder))[0]


@pytest.mark.parametrize(("world_size", "options"), [(2, {}), (2, {"micro_batch": 2})])
def test_the_number_of_ranks_changes_nothing(ranks, alone, world_size, options):
    folder, reference = alone
    results = ranks.run(world_size, programs.train, folder=str(folder), **options)
    steps = zip(*(result["ids"] for result in results), strict=True)
    ids = [sorted(chain.from_iterable(parts)) for parts in steps]
    assert ids == [sorted(step) for step in reference["ids"]]
    for result in results:
        assert result["losses"] == pytest.approx(reference["losses"], rel=1e-5)
        assert result["metrics"] == pytest.approx(reference["metrics"], rel=1e-4)
        for name, weight in reference["weights"].items():
            torch.testing.assert_close(result["weights"][name], weight, rtol=1e-3, atol=1e-5)


def test_it_learns_and_perplexity_is_e_to_the_loss(alone):
    _, reference = alone
    assert reference["losses"][-1] < reference["losses"][0] - 0.5
    loss, perplexity = reference["metrics"]["loss"], reference["metrics"]["perplexity"]
    assert perplexity == pytest.approx(torch.tensor(loss).exp().item(), rel=1e-5)


def test_sharded_weights_start_as_the_whole_models(ranks):
    for result in ranks.run(2, programs.sharded_weights):
        assert result == {"differing": [], "is_tied": True}


def test_a_head_cut_over_ranks_gives_the_same_losses_and_gradients(ranks):
    for ours, expected, ours_grad, expected_grad in ranks.run(2, programs.sharded_head):
        torch.testing.assert_close(ours, expected)
        torch.testing.assert_close(ours_grad, expected_grad)
