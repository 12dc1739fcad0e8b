"""Which driver a CUDA version needs, and which CUDA a driver brings: NVIDIA's tables for Linux.

Sources: CUDA Toolkit release notes, "CUDA Toolkit and Corresponding Driver Versions" (7.0 to 13.3; the older
ones from the release notes of their time); CUDA Compatibility guide, "Minor Version Compatibility".
"""

from __future__ import annotations

import re
from typing import Final

Version = tuple[int, ...]

# CUDA → the oldest Linux driver of its first general release.
DRIVER_FLOORS: Final[dict[Version, Version]] = {
    (5, 0): (304, 54),
    (5, 5): (319, 37),
    (6, 0): (331, 62),
    (6, 5): (340, 29),
    (7, 0): (346, 46),
    (7, 5): (352, 31),
    (8, 0): (367, 48),
    (9, 0): (384, 81),
    (9, 1): (387, 26),
    (9, 2): (396, 26),
    (10, 0): (410, 48),
    (10, 1): (418, 39),
    (10, 2): (440, 33),
    (11, 0): (450, 36, 6),
    (11, 1): (455, 23),
    (11, 2): (460, 27, 3),
    (11, 3): (465, 19, 1),
    (11, 4): (470, 42, 1),
    (11, 5): (495, 29, 5),
    (11, 6): (510, 39, 1),
    (11, 7): (515, 43, 4),
    (11, 8): (520, 61, 5),
    (12, 0): (525, 60, 13),
    (12, 1): (530, 30, 2),
    (12, 2): (535, 54, 3),
    (12, 3): (545, 23, 6),
    (12, 4): (550, 54, 14),
    (12, 5): (555, 42, 2),
    (12, 6): (560, 28, 3),
    (12, 8): (570, 26),
    (12, 9): (575, 51, 3),
    (13, 0): (580, 65, 6),
    (13, 1): (590, 44, 1),
    (13, 2): (595, 45, 4),
    (13, 3): (610, 43, 2),
}

# CUDA major → the oldest driver on which every minor version of it runs (without new driver features, and
# without compiling PTX of a newer toolkit).
MINOR_VERSION_FLOORS: Final[dict[int, Version]] = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}

NEWEST_KNOWN_DRIVER: Final = max(DRIVER_FLOORS.values())
_VERSION = re.compile(r"\d{1,5}(?:\.\d{1,9}){0,4}")


def parse_version(text: str) -> Version | None:
    """`"525.116.04"` → (525, 116, 4); what follows the digits (`+cu118`, `.post1`, ` (r1)`) is left out."""
    match = _VERSION.match(text.strip())
    return tuple(int(part) for part in match.group().split(".")) if match else None


def show_version(version: Version) -> str:
    """The usual spelling; a driver's third number has two digits (525.60.13, 450.80.02)."""
    if len(version) == 3 and version[0] >= 100:
        return f"{version[0]}.{version[1]:02}.{version[2]:02}"
    return ".".join(str(part) for part in version)


def newest_cuda_of_driver(driver: Version) -> Version | None:
    """The newest CUDA that `driver` brings, by its branch; None for drivers older than the table.

    A driver newer than the table brings at least the newest CUDA in it.
    """
    fitting = [cuda for cuda, floor in DRIVER_FLOORS.items() if driver >= floor]
    return max(fitting, default=None)


def oldest_driver_for_cuda(cuda: Version) -> Version | None:
    """The oldest driver on which a program built with `cuda` starts, minor-version compatibility counted in.

    None for a CUDA of a major version that the table does not know.
    """
    if cuda[0] in MINOR_VERSION_FLOORS:
        return MINOR_VERSION_FLOORS[cuda[0]]
    return DRIVER_FLOORS.get(cuda[:2])
