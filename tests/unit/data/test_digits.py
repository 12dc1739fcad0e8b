"""The digits: split, values, augmentation."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from drivetrain.data.digits import Digits, DigitsAugment
from drivetrain.data.draw import sample_generator
from drivetrain.spec.errors import InputError


def test_values_and_labels_are_scikit_learns() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    pixels, labels = datasets.load_digits(return_X_y=True)
    train, val = Digits("train"), Digits("val")
    ours = torch.cat([train.images, val.images]).flatten(1)
    assert ours.shape == (1797, 64)
    assert ours.dtype == torch.float32
    assert ours.min() >= 0.0
    assert ours.max() == 1.0
    # The same images with the same labels, in another order.
    rows = np.concatenate([ours.numpy() * 16, np.array(train.labels + val.labels)[:, None]], axis=1)
    theirs = np.concatenate([pixels, labels[:, None]], axis=1)
    assert np.array_equal(rows[np.lexsort(rows.T)], theirs[np.lexsort(theirs.T)])


def test_each_class_gives_its_share_and_the_seed_chooses_which() -> None:
    train, val = Digits("train", seed=1), Digits("val", seed=1)
    for label in range(10):
        held_out, rest = val.labels.count(label), train.labels.count(label)
        assert abs(held_out - 0.2 * (held_out + rest)) <= 0.5
    assert torch.equal(Digits("val", seed=1).images, val.images)
    assert not torch.equal(Digits("val", seed=2).images[:50], val.images[:50])
    assert Digits("val", seed=2).fingerprint != val.fingerprint


def test_a_sample_is_an_image_and_a_number() -> None:
    image, label = Digits("train")[3]
    assert image.shape == (1, 8, 8)
    assert isinstance(label, int)


def test_augmentation_moves_by_at_most_a_pixel() -> None:
    augment = DigitsAugment()
    drawn = {tuple(augment.draw(sample_generator(0, 0, index)).tolist()) for index in range(200)}
    assert drawn == {(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)}
    image = torch.arange(64.0).view(1, 8, 8) + 1
    for down, right in drawn:
        moved, label = augment.render((image, 4), np.array([down, right]))
        expected = torch.zeros(1, 10, 10)
        expected[:, 1 + down : 9 + down, 1 + right : 9 + right] = image
        assert torch.equal(moved, expected[:, 1:9, 1:9])
        assert label == 4


def test_without_scikit_learn_the_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="not installed") as caught:
        Digits("train")
    assert caught.value.do == "pip install 'drivetrain[digits]'"


def test_a_share_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match="share held out"):
        Digits("train", val_fraction=1.0)
