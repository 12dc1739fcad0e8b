"""An image file to RGB with 8 bits a channel, rightly or not at all."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

# Pillow's modes with one 16-bit channel.
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
# Formats whose 16-bit images some Pillow versions open as 32-bit integers, scaled to 0 … 65535.
_SIXTEEN_BITS_AS_32 = ("PNG", "PPM")


def decode_rgb(path: str | Path) -> Image.Image:
    """Reads `path` into an RGB image. The content decides the format, not the name.

    CMYK and palettes are converted, 16 bits scaled to 8, transparency dropped, an orientation in the EXIF
    data not applied: all as torchvision's ImageFolder does, except 16-bit grey, which that clips at 255.

    Raises:
        OSError, ValueError: the file cannot be read, is empty, truncated, no image, larger than Pillow's
        limit
            for decompression bombs, or of 32-bit values, whose range nobody knows.
    """
    try:
        with open(path, "rb") as file, warnings.catch_warnings():  # noqa: PTH123 - faster, and run for each sample
            # Pillow only warns up to twice its limit. Its other warnings are of broken EXIF data, not used
            # here.
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            try:
                with Image.open(file) as image:
                    image.load()
                    return _to_rgb(image)
            except UnidentifiedImageError as error:
                file.seek(0)
                raise ValueError(_why_no_image(file.read(16))) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"{str(error).split(', could be')[0]} (PIL.Image.MAX_IMAGE_PIXELS)") from error
    except (OSError, ValueError, MemoryError):
        raise
    # Pillow's parsers meet broken files with SyntaxError, struct.error, IndexError, TypeError and others.
    except Exception as error:
        raise ValueError(f"broken image file: {type(error).__name__}: {error}") from error


def _why_no_image(start: bytes) -> str:
    if not start:
        return "the file is empty (0 bytes)"
    if not start.strip(b"\0"):
        return "it is no image: it begins with zeros, as a copy that was broken off does"
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in start):
        return f"it is no image: it begins with the text {start.decode()!r}"
    return f"it cannot be read as an image: it begins with the bytes {start[:8].hex(' ')}"


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in _SIXTEEN_BITS or (image.mode == "I" and image.format in _SIXTEEN_BITS_AS_32):
        # 65535 becomes 255. Pillow's own convert clips everything above 255 to white.
        grey = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((grey * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError(f"its values are 32-bit (mode {image.mode}): unknown what is black and what white")
    return image if image.mode == "RGB" else image.convert("RGB")
