"""Synthetic images, and batches that cost nothing."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
import torch

from drivetrain.data.image_draw import ImageAugment
from drivetrain.data.labels import CheckedLabels
from drivetrain.data.stream import Stream
from drivetrain.data.synthetic import SyntheticImages
from drivetrain.data.workers import LoaderPlan
from drivetrain.spec.batch import plan_batches
from drivetrain.spec.errors import InputError


def stream(dataset: Any, global_batch: int = 10, ranks: int = 1, rank: int = 0, **more: Any) -> Stream:
    plan = plan_batches(global_batch=global_batch, num_data_ranks=ranks, micro_batch=more.pop("micro", None))
    loader = LoaderPlan(timeout_s=30)
    return Stream(
        dataset, plan=plan, data_rank=rank, seed=0, loader=loader, device=torch.device("cpu"), **more
    )


def test_an_image_depends_on_its_index_alone() -> None:
    first, second = (SyntheticImages(size=16, num_classes=5, num_samples=100) for _ in range(2))
    image, label = first[42]
    assert image.shape == (3, 16, 16)
    assert image.dtype == torch.uint8
    for index in (7, 42):
        assert torch.equal(first[index][0], second[index][0])
        assert first[index][1] == second[index][1]
    assert not torch.equal(first[7][0], image)
    assert 0 <= label < 5
    assert {first[index][1] for index in range(100)} == set(range(5))
    with pytest.raises(IndexError):
        first[100]


def test_they_are_augmented_like_others() -> None:
    augment = ImageAugment(8)
    dataset = SyntheticImages(size=16, num_classes=5, num_samples=100)
    micro = next(stream(dataset, draw=augment.draw, render=augment.render)).micro_batches[0]
    assert micro.x.shape == (10, 3, 8, 8)
    assert micro.params.shape == (10, 23)


def test_prepared_batches_are_the_same_tensors_with_the_streams_ids() -> None:
    dataset = SyntheticImages(size=8, num_classes=5, num_samples=100, prepared=True)
    usual = SyntheticImages(size=8, num_classes=5, num_samples=100)
    source = stream(dataset, draw=ImageAugment(8).draw, render=ImageAugment(8).render)
    steps = list(itertools.islice(source, 30))
    for step, other in zip(steps, itertools.islice(stream(usual), 30), strict=True):
        micro = step.micro_batches[0]
        assert micro.x is steps[0].micro_batches[0].x
        assert torch.equal(micro.ids, other.micro_batches[0].ids)
        assert torch.equal(micro.positions, other.micro_batches[0].positions)
        assert micro.num_valid == 10.0
        assert source.to_device(micro).x is micro.x
        assert torch.equal(source.to_device(micro).ids, micro.ids)
    assert source.position == 300


def test_a_prepared_batch_may_be_larger_than_what_was_made_and_padding_has_weight_0() -> None:
    dataset = SyntheticImages(size=2, num_classes=5, num_samples=3, prepared=True)
    assert dataset.prepared_batch(700)[0].shape == (700, 3, 2, 2)
    assert dataset.prepared_batch(700)[1].shape == (700,)
    source = stream(dataset, global_batch=4, ranks=3, rank=2, micro=1)
    for step in itertools.islice(source, 2):
        assert [micro.num_valid for micro in step.micro_batches] == [1.0, 0.0]
        assert [micro.weight.tolist() for micro in source.device_batches(step)] == [[1.0], [0.0]]


def test_preparing_passes_through_the_label_check() -> None:
    dataset = CheckedLabels(SyntheticImages(size=8, num_classes=5, num_samples=100, prepared=True), 5)
    source = stream(dataset)
    assert next(source).micro_batches[0].x is next(source).micro_batches[0].x


def test_a_prepared_step_costs_next_to_nothing() -> None:
    source = stream(SyntheticImages(size=224, num_classes=1000, num_samples=10**6, prepared=True), 64)
    next(source)
    started = time.perf_counter()
    for _ in range(20):
        next(source)
    assert (time.perf_counter() - started) / 20 < 0.02  # 0.2 ms alone


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(InputError, match="num_samples 0"):
        SyntheticImages(size=8, num_classes=5, num_samples=0)
