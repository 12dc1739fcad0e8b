"""A data set of image files in class folders."""

from __future__ import annotations

from PIL import Image

from drivetrain.data.decode import decode_rgb
from drivetrain.data.folder_walk import EXTENSIONS
from drivetrain.data.image_index import ImageFolderIndex, Split
from drivetrain.data.image_scan import scan, scan_both
from drivetrain.spec.errors import BadSampleError

__all__ = ["EXTENSIONS", "ImageFolderDataset", "ImageFolderIndex", "Split", "scan", "scan_both"]


class ImageFolderDataset:
    """`dataset[i]` is (RGB image with 8 bits a channel, label).

    An image that cannot be decoded rightly raises BadSampleError with its path.
    """

    def __init__(self, index: ImageFolderIndex) -> None:
        self.index = index

    @property
    def classes(self) -> tuple[str, ...]:
        return self.index.classes

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        try:
            image = decode_rgb(self.index.path(index))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise BadSampleError(source=self.source(index), reason=reason) from error
        return image, self.index.label(index)

    def source(self, index: int) -> str:
        """What the sample is called in messages: its path."""
        return self.index.path(index)
