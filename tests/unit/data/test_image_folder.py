"""Odd image files: decoded rightly, or a bad sample with its path."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from drivetrain.data.image_draw import ImageEval
from drivetrain.data.image_folder import ImageFolderDataset, scan
from drivetrain.data.stream import Stream
from drivetrain.data.workers import LoaderPlan
from drivetrain.spec.batch import plan_batches
from drivetrain.spec.errors import BadSampleError

ORANGE = (250, 120, 10)


def save_photo(path: Path, **more: object) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, **more)


def dataset_of(root: Path) -> ImageFolderDataset:
    return ImageFolderDataset(scan(root, "train", val_fraction=0.0))


def read(root: Path, name: str, write: Callable[[Path], None]) -> Image.Image:
    """What becomes of the one image that `write` makes."""
    (root / "cat").mkdir()
    write(root / "cat" / name)
    image, label = dataset_of(root)[0]
    assert label == 0
    assert image.mode == "RGB"
    return image


def colour(image: Image.Image) -> tuple[int, ...]:
    return tuple(np.asarray(image).reshape(-1, 3).mean(axis=0).round().astype(int).tolist())


def test_a_png_named_jpg_is_decoded(tmp_path: Path) -> None:
    image = read(tmp_path, "a.jpg", lambda path: Image.new("RGB", (9, 7), ORANGE).save(path, "PNG"))
    assert colour(image) == ORANGE
    assert image.size == (9, 7)


def test_cmyk_becomes_the_same_colour_in_rgb(tmp_path: Path) -> None:
    cmyk = Image.new("RGB", (16, 16), ORANGE).convert("CMYK")
    image = read(tmp_path, "a.jpg", lambda path: cmyk.save(path, quality=100))
    assert np.abs(np.subtract(colour(image), ORANGE)).max() <= 2


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    grey = np.array([[0, 257, 256 * 128, 65535]], dtype=np.uint16)
    image = read(tmp_path, "a.png", lambda path: Image.fromarray(grey).save(path))
    assert np.asarray(image)[0, :, 0].tolist() == [0, 1, 128, 255]


def test_sixteen_bit_tiff_and_pgm_are_scaled_too(tmp_path: Path) -> None:
    grey = np.array([[0, 257, 256 * 128, 65535]], dtype=np.uint16)
    (tmp_path / "cat").mkdir()
    Image.fromarray(grey).save(tmp_path / "cat/a.tif")
    (tmp_path / "cat/b.pgm").write_bytes(b"P5 4 1 65535\n" + grey.astype(">u2").tobytes())
    dataset = dataset_of(tmp_path)
    for index in range(2):
        assert np.asarray(dataset[index][0])[0, :, 1].tolist() == [0, 1, 128, 255]


def _png16(path: Path, pixels: np.ndarray) -> None:
    """Pillow cannot write RGB of 16 bits."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)


def test_sixteen_bit_colour_is_scaled_to_within_one(tmp_path: Path) -> None:
    pixels = np.array([[[0, 257 * 100, 65535]]], dtype=np.uint16)
    image = read(tmp_path, "a.png", lambda path: _png16(path, pixels))
    assert np.abs(np.asarray(image)[0, 0].astype(int) - [0, 100, 255]).max() <= 1


def test_palettes_and_transparency_give_the_colours_themselves(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    palette = Image.new("RGB", (8, 8), ORANGE).convert("P", palette=Image.Palette.ADAPTIVE)
    palette.save(tmp_path / "cat/a.png", transparency=b"\x80" * 8)
    Image.new("RGBA", (8, 8), (*ORANGE, 0)).save(tmp_path / "cat/b.png")
    Image.new("LA", (8, 8), (90, 10)).save(tmp_path / "cat/c.png")
    Image.new("1", (8, 8), 1).save(tmp_path / "cat/d.png")
    dataset = dataset_of(tmp_path)
    assert [colour(dataset[index][0]) for index in range(4)] == [ORANGE, ORANGE, (90,) * 3, (255,) * 3]


def test_exif_orientation_is_not_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by 90°
    assert read(tmp_path, "a.jpg", lambda path: save_photo(path, exif=exif)).size == (80, 60)


def test_broken_exif_is_no_matter(tmp_path: Path) -> None:
    assert read(tmp_path, "a.jpg", lambda path: save_photo(path, exif=b"Exif\0\0MM\0*garbage")).size == (
        80,
        60,
    )


def _truncated_jpeg(path: Path) -> str:
    save_photo(path)
    path.write_bytes(path.read_bytes()[:-1500])
    return "truncated"


def _truncated_png(path: Path) -> str:
    save_photo(path, format="PNG")
    path.write_bytes(path.read_bytes()[:3000])
    return "truncated"


def _header_only(path: Path) -> str:
    save_photo(path)
    path.write_bytes(path.read_bytes()[:12])
    return "Truncated"


def _noise(path: Path) -> str:
    path.write_bytes(bytes(range(100, 200)) * 5)
    return "it is no image: it begins with the text 'defghijklmnopqrs'"


def _archive(path: Path) -> str:
    path.write_bytes(b"PK\x03\x04" + bytes(range(200)))
    return "it cannot be read as an image: it begins with the bytes 50 4b 03 04"


def _text(path: Path) -> str:
    path.write_text("<html>404 Not Found</html>")
    return "it is no image: it begins with the text '<html>404 Not Fo'"


def _empty(path: Path) -> str:
    path.touch()
    return "the file is empty (0 bytes)"


def _zeros(path: Path) -> str:
    path.write_bytes(bytes(1000))
    return "begins with zeros"


def _bomb_warned_of(path: Path) -> str:
    Image.new("1", (10_000, 9_500)).save(path, "PNG")
    return "exceeds limit of 89478485 pixels"


def _bomb(path: Path) -> str:
    Image.new("1", (20_000, 9_500)).save(path, "PNG")
    return "exceeds limit of 178956970 pixels"


def _float_tiff(path: Path) -> str:
    Image.fromarray(np.ones((4, 4), dtype=np.float32)).save(path, "TIFF")
    return "values are 32-bit (mode F)"


def _broken_checksum(path: Path) -> str:
    save_photo(path, format="PNG")
    content = bytearray(path.read_bytes())
    content[29] ^= 1  # the checksum of the header
    path.write_bytes(content)
    return ""


def _gone(path: Path) -> str:
    path.symlink_to(path.parent / "b.jpg")
    return "No such file or directory"


BROKEN = [
    _truncated_jpeg,
    _truncated_png,
    _header_only,
    _noise,
    _archive,
    _text,
    _empty,
    _zeros,
    _bomb_warned_of,
    _bomb,
    _float_tiff,
    _broken_checksum,
    _gone,
]


@pytest.mark.parametrize("write", BROKEN)
def test_what_cannot_be_decoded_rightly_is_a_bad_sample_with_its_path(
    tmp_path: Path, write: Callable[[Path], str]
) -> None:
    path = tmp_path / "cat" / "a.jpg"
    path.parent.mkdir()
    save_photo(path.parent / "b.jpg")
    reason = write(path)
    index = scan(tmp_path, "train", val_fraction=0.0)
    if write is _gone:
        (path.parent / "b.jpg").unlink()
    with pytest.raises(BadSampleError) as caught:
        ImageFolderDataset(index)[0]
    assert caught.value.source == str(path)
    assert reason in caught.value.reason
    assert "\n" not in caught.value.reason


def test_a_stream_skips_them_and_names_them(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    for number in range(6):
        save_photo(tmp_path / "cat" / f"{number}.jpg")
    _text(tmp_path / "cat" / "2.jpg")
    _truncated_jpeg(tmp_path / "cat" / "4.jpg")
    source = Stream(
        dataset_of(tmp_path),
        plan=plan_batches(global_batch=6, num_data_ranks=1),
        data_rank=0,
        seed=0,
        loader=LoaderPlan(workers=1, timeout_s=30),
        device=torch.device("cpu"),
        render=ImageEval(16).render,
        on_bad_sample="skip",
    )
    with source:
        micro = next(source).micro_batches[0]
    assert micro.x.shape == (6, 3, 16, 16)
    assert micro.x.dtype == torch.uint8
    assert micro.num_valid == 4.0
    assert sorted(Path(sample.source).name for sample in micro.skipped) == ["2.jpg", "4.jpg"]
    assert sorted(micro.ids[micro.weight == 0].tolist()) == [2, 4]


def test_samples_that_are_pillow_images_need_a_render(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    save_photo(tmp_path / "cat" / "a.jpg")
    source = Stream(
        dataset_of(tmp_path),
        plan=plan_batches(global_batch=1, num_data_ranks=1),
        data_rank=0,
        seed=0,
        loader=LoaderPlan(),
        device=torch.device("cpu"),
    )
    with pytest.raises(ValueError, match="return tensors, arrays or numbers"):
        next(source)
