"""Crops and flips: drawn without an image, rendered on any."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from drivetrain.data.draw import sample_generator
from drivetrain.data.image_draw import ImageAugment, ImageEval


def picture(width: int, height: int) -> Image.Image:
    rows, columns = np.mgrid[0:height, 0:width]
    red, green = rows * 255 // max(height - 1, 1), columns * 255 // max(width - 1, 1)
    return Image.fromarray(np.stack([red, green, (rows + columns) % 256], axis=2).astype(np.uint8))


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (64, 64), (1, 1), (1, 500), (500, 1)])
def test_crops_lie_in_the_image_and_give_the_size_asked_for(size: tuple[int, int]) -> None:
    augment, image = ImageAugment(24), picture(*size)
    for index in range(50):
        params = augment.draw(sample_generator(0, 0, index))
        left, top, right, bottom = augment.crop_box(*size, params)
        assert 0 <= left < right <= size[0]
        assert 0 <= top < bottom <= size[1]
        pixels, label = augment.render((image, 7), params)
        assert pixels.shape == (3, 24, 24)
        assert pixels.dtype == torch.uint8
        assert pixels.is_contiguous()
        assert label == 7


def test_areas_and_ratios_are_spread_over_what_is_allowed() -> None:
    augment = ImageAugment(224)
    boxes = [augment.crop_box(500, 500, augment.draw(sample_generator(1, 0, index))) for index in range(2000)]
    shares = np.array([(right - left) * (bottom - top) / 250_000 for left, top, right, bottom in boxes])
    ratios = np.array([(right - left) / (bottom - top) for left, top, right, bottom in boxes])
    assert shares.min() > 0.075
    assert shares.min() < 0.1
    assert shares.max() > 0.9
    assert 0.74 < ratios.min() < 0.77
    assert 1.31 < ratios.max() < 1.36
    # Equally often wide and tall.
    assert abs(np.log(ratios).mean()) < 0.02
    flips = [augment.draw(sample_generator(1, 0, index))[-1] for index in range(2000)]
    assert set(flips) == {0.0, 1.0}
    assert abs(np.mean(flips) - 0.5) < 0.06


def test_crops_are_distributed_as_torchvisions() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    augment, num = ImageAugment(224), 3000
    blank = torch.zeros(3, 300, 500)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = np.array(
            [transforms.RandomResizedCrop.get_params(blank, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(num)],
            dtype=float,
        )
    ours = np.array(
        [augment.crop_box(500, 300, augment.draw(sample_generator(2, 0, index))) for index in range(num)],
        dtype=float,
    )
    left, top, width, height = ours[:, 0], ours[:, 1], ours[:, 2] - ours[:, 0], ours[:, 3] - ours[:, 1]
    for mine, other in zip((top, left, height, width), theirs.T, strict=True):
        spread = max(other.std(), 1.0)
        assert abs(mine.mean() - other.mean()) < 5 * spread * math.sqrt(2 / num)
        assert abs(mine.std() - other.std()) < 0.1 * spread


def test_parameters_do_not_depend_on_the_image_and_are_few() -> None:
    params = ImageAugment(224).draw(sample_generator(0, 0, 0))
    assert params.shape == (23,)
    assert params.dtype == np.float32
    assert np.array_equal(params, ImageAugment(32).draw(sample_generator(0, 0, 0)))


def test_an_extreme_image_gets_its_centre_in_an_allowed_ratio() -> None:
    augment = ImageAugment(8)
    params = augment.draw(sample_generator(0, 0, 0))
    assert augment.crop_box(1000, 10, params) == (493, 0, 506, 10)
    assert augment.crop_box(10, 1000, params) == (0, 493, 10, 506)


def test_a_flip_mirrors_left_and_right() -> None:
    augment, image = ImageAugment(16), picture(64, 64)
    params = augment.draw(sample_generator(0, 0, 3))
    params[-1] = 0
    straight = augment.render((image, 0), params)[0]
    params[-1] = 1
    assert torch.equal(augment.render((image, 0), params)[0], straight.flip(2))


def test_pillow_array_and_tensor_give_the_same() -> None:
    augment, image = ImageAugment(16), picture(40, 30)
    params = augment.draw(sample_generator(0, 0, 3))
    expected = augment.render((image, 0), params)[0]
    array = np.asarray(image)
    assert torch.equal(augment.render((array, 0), params)[0], expected)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    assert torch.equal(augment.render((tensor, 0), params)[0], expected)
    with pytest.raises(TypeError, match="float32"):
        augment.render((np.zeros((4, 4, 3), dtype=np.float32), 0), params)


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (300, 301), (64, 48), (2000, 100)])
def test_evaluation_sees_what_resize_and_centre_crop_would_give(size: tuple[int, int]) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    image = picture(*size)
    usual = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.PILToTensor()])
    ours = ImageEval(224).render((image, 3))[0].int()
    difference = (ours - usual(image).int())[:2].abs()  # the third channel wraps around
    assert difference.float().mean() < 0.5
    assert difference.max() <= 3


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (400, 1), (7, 5)])
def test_evaluation_takes_any_image(size: tuple[int, int]) -> None:
    assert ImageEval(32).render((picture(*size), 0))[0].shape == (3, 32, 32)


def test_both_can_be_pickled() -> None:
    for each in (ImageAugment(8), ImageEval(8)):
        assert pickle.loads(pickle.dumps(each)) == each
        assert pickle.loads(pickle.dumps(each.render)).__self__ == each
