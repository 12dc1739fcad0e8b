"""Image augmentation in two halves: drawn as numbers that no image size enters, then rendered."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

Params = NDArray[np.float32]
_TRIES = 10
_EVAL_CROP = 0.875  # of the resized image's shorter side, as the published ResNet results take


@dataclass(frozen=True)
class ImageAugment:
    """A random crop of random area and shape, resized to `size` × `size`, and a horizontal flip.

    The crop is that of Szegedy et al., "Going deeper with convolutions" (2014), section 6, in the usual
    form: up to ten tries of an area and an aspect ratio until one fits into the image, else the largest
    central crop with an allowed ratio. Whether a try fits depends on the image's shape, so all ten are drawn,
    and `render` takes the first that fits: the parameters do not depend on the image.

    Attributes:
        size: pixels of each side of the result.
        scale: least and most share of the image's area.
        ratio: least and most width / height of the crop.
        flip: probability of mirroring left and right.
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def draw(self, generator: np.random.Generator) -> Params:
        """(23,) float32: ten area shares, ten log ratios, left and top as shares of the free room, flip."""
        numbers = generator.random(2 * _TRIES + 3)
        params = np.empty(2 * _TRIES + 3, dtype=np.float32)
        params[:_TRIES] = self.scale[0] + (self.scale[1] - self.scale[0]) * numbers[:_TRIES]
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        params[_TRIES : 2 * _TRIES] = low + (high - low) * numbers[_TRIES : 2 * _TRIES]
        params[-3:-1] = numbers[-3:-1]
        params[-1] = numbers[-1] < self.flip
        return params

    def render(self, sample: Any, params: Params) -> Any:
        """`sample` (image, …) with the image as uint8 (3, size, size); the rest as it is.

        The image is a Pillow image, a uint8 array (H, W, 3) or a uint8 tensor (3, H, W).
        """
        image = _as_pillow(sample[0])
        box = self.crop_box(image.width, image.height, params)
        cut = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        return (_as_tensor(cut, flip=bool(params[-1])), *sample[1:])

    def crop_box(self, width: int, height: int, params: Params) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the crop in an image of `width` × `height` pixels."""
        for share, log_ratio in zip(
            params[:_TRIES].tolist(), params[_TRIES : 2 * _TRIES].tolist(), strict=True
        ):
            area, ratio = share * width * height, math.exp(log_ratio)
            crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < crop_width <= width and 0 < crop_height <= height:
                left = _place(float(params[-3]), width - crop_width)
                top = _place(float(params[-2]), height - crop_height)
                return left, top, left + crop_width, top + crop_height
        return self._central_box(width, height)

    def _central_box(self, width: int, height: int) -> tuple[int, int, int, int]:
        crop_width, crop_height = width, height
        if width / height < self.ratio[0]:
            crop_height = min(height, max(1, round(width / self.ratio[0])))
        elif width / height > self.ratio[1]:
            crop_width = min(width, max(1, round(height * self.ratio[1])))
        left, top = (width - crop_width) // 2, (height - crop_height) // 2
        return left, top, left + crop_width, top + crop_height


@dataclass(frozen=True)
class ImageEval:
    """The central `size` × `size` pixels of the image with its shorter side resized to `size` / 0.875.

    Both in one resampling of the part that is wanted.
    """

    size: int

    def render(self, sample: Any, params: None = None) -> Any:  # noqa: ARG002 - nothing is drawn
        """`sample` (image, …) with the image as uint8 (3, size, size); the rest as it is."""
        image = _as_pillow(sample[0])
        cut = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=self.crop_box(*image.size))
        return (_as_tensor(cut, flip=False), *sample[1:])

    def crop_box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the crop in an image of `width` × `height` pixels."""
        shorter = round(self.size / _EVAL_CROP)
        # As if resized to whole pixels first: the longer side is cut off, not rounded.
        new_width = shorter if width <= height else int(shorter * width / height)
        new_height = shorter if height <= width else int(shorter * height / width)
        left, top = round((new_width - self.size) / 2), round((new_height - self.size) / 2)
        scale_x, scale_y = width / new_width, height / new_height
        right, bottom = (left + self.size) * scale_x, (top + self.size) * scale_y
        return left * scale_x, top * scale_y, min(right, width), min(bottom, height)


def _place(share: float, room: int) -> int:
    return min(int(share * (room + 1)), room)


def _as_pillow(image: Any) -> Image.Image:
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, Tensor):
        image = image.permute(1, 2, 0).contiguous().numpy()
    if not (
        isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
    ):
        found = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise TypeError(f"an image is a Pillow image or uint8 with 3 channels, not {found}")
    return Image.fromarray(image)


def _as_tensor(image: Image.Image, *, flip: bool) -> Tensor:
    pixels = np.asarray(image)
    if flip:
        pixels = pixels[:, ::-1]
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
