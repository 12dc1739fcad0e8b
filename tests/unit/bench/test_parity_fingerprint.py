"""Fingerprints stand for tensors, and digests for samples."""

import math

import pytest
import torch

from drivetrain.bench import parity_fingerprint
from drivetrain.bench.parity_errors import distance
from drivetrain.bench.parity_fingerprint import fingerprints, gradients_of, sample_digests
from drivetrain.data.batch import MicroBatch


def one(name, tensor):
    return fingerprints([(name, tensor)])[name]


def test_equal_tensors_have_equal_fingerprints_that_depend_on_the_name():
    tensor = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    assert one("a", tensor) == one("a", tensor.clone())
    assert one("a", tensor).products != one("b", tensor).products
    assert one("a", tensor).norm == pytest.approx(float(tensor.double().norm()), rel=1e-12)


@pytest.mark.parametrize("size", [1e-6, 1e-2, 1.0])
def test_the_distance_of_fingerprints_estimates_that_of_tensors(size):
    generator = torch.Generator().manual_seed(2)
    for number in range(20):
        tensor = torch.randn(1000, generator=generator)
        moved = tensor + size * torch.randn(1000, generator=generator)
        true = float((moved.double() - tensor.double()).norm())
        estimate = distance(one(f"t{number}", tensor), one(f"t{number}", moved))
        assert true / 4 < estimate < 4 * true


def test_pieces_of_a_large_tensor_get_directions_of_their_own(monkeypatch):
    monkeypatch.setattr(parity_fingerprint, "_CHUNK", 8)
    tensor = torch.arange(20.0)
    swapped = torch.cat([tensor[8:16], tensor[:8], tensor[16:]])
    assert one("a", tensor).norm == pytest.approx(math.sqrt(sum(i * i for i in range(20))))
    assert distance(one("a", tensor), one("a", swapped)) > 1


def test_a_fingerprint_leaves_the_random_numbers_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one("a", torch.ones(10))
    assert torch.equal(before, torch.get_rng_state())


def test_a_missing_gradient_counts_as_zero_and_frozen_parameters_as_none():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    net[1].weight.requires_grad_(False)
    net[0](torch.ones(1, 2)).sum().backward()
    found = fingerprints(gradients_of(net))
    assert found.keys() == {"0.weight", "0.bias", "1.bias"}
    assert found["1.bias"].norm == 0.0
    assert found["0.bias"].norm > 0


def test_a_samples_digest_covers_all_its_tensors_and_none_of_its_neighbours():
    x, y = torch.rand(3, 2, 2), torch.tensor([0, 1, 2])

    def digests(x, y):
        positions = torch.tensor([10, 11, -1])
        return sample_digests(
            MicroBatch(
                data={"x": x, "y": y},
                weight=torch.tensor([1.0, 1.0, 0.0]),
                num_valid=2.0,
                ids=torch.tensor([4, 5, -1]),
                positions=positions,
            )
        )

    first = digests(x, y)
    assert {position: id_ for position, (id_, _) in first.items()} == {10: 4, 11: 5}
    other = digests(x, torch.tensor([0, 7, 2]))
    assert first[10] == other[10]
    assert first[11] != other[11]
    moved = x.clone()
    moved[0, 1, 1] += 1e-6
    assert digests(moved, y)[10] != first[10]
