"""What PyTorch's wheels for Linux x86-64 contain: compute capabilities and the NVIDIA libraries they pin.

Used where torch itself cannot be asked: for reports pasted from elsewhere. Sources: pytorch/builder
`manywheel/build_cuda.sh` and pytorch/pytorch `.ci/manywheel/build_cuda.sh`, `build_env_setup.py`
(TORCH_CUDA_ARCH_LIST); `.github/scripts/generate_binary_build_matrix.py` (pinned libraries).
"""

from __future__ import annotations

from typing import Final

from drivetrain.hardware.cuda_versions import Version

# (first torch of the row, CUDA) → sm numbers. A wheel is described by the last row at or before its version.
_ARCHS: Final[tuple[tuple[Version, Version, tuple[int, ...]], ...]] = (
    ((1, 8), (10, 2), (37, 50, 60, 70)),
    ((1, 8), (11, 1), (37, 50, 60, 70, 75, 80, 86)),
    ((1, 10), (11, 3), (37, 50, 60, 70, 75, 80, 86)),
    ((1, 12), (11, 6), (37, 50, 60, 70, 75, 80, 86)),
    ((1, 13), (11, 7), (37, 50, 60, 70, 75, 80, 86)),
    ((2, 0), (11, 8), (37, 50, 60, 70, 75, 80, 86, 90)),
    ((2, 1), (12, 1), (50, 60, 70, 75, 80, 86, 90)),
    ((2, 4), (12, 4), (50, 60, 70, 75, 80, 86, 90)),
    ((2, 6), (12, 6), (50, 60, 70, 75, 80, 86, 90)),
    ((2, 7), (12, 8), (75, 80, 86, 90, 100, 120)),
    ((2, 8), (12, 9), (70, 75, 80, 86, 90, 100, 120)),
    ((2, 8), (12, 8), (70, 75, 80, 86, 90, 100, 120)),
    ((2, 9), (13, 0), (75, 80, 86, 90, 100, 120)),
    ((2, 12), (13, 2), (75, 80, 86, 90, 100, 120)),
)

# (torch major.minor, CUDA) → NCCL, cuDNN of the wheel.
_LIBRARIES: Final[dict[tuple[Version, Version], tuple[str, str]]] = {
    ((2, 0), (11, 7)): ("2.14.3", "8.5.0.96"),
    ((2, 1), (12, 1)): ("2.18.1", "8.9.2.26"),
    ((2, 2), (12, 1)): ("2.19.3", "8.9.2.26"),
    ((2, 3), (12, 1)): ("2.20.5", "8.9.2.26"),
    ((2, 4), (12, 1)): ("2.20.5", "9.1.0.70"),
    ((2, 4), (12, 4)): ("2.20.5", "9.1.0.70"),
    ((2, 5), (12, 4)): ("2.21.5", "9.1.0.70"),
    ((2, 6), (12, 4)): ("2.21.5", "9.1.0.70"),
    ((2, 6), (12, 6)): ("2.21.5", "9.5.1.17"),
    ((2, 7), (12, 6)): ("2.26.2", "9.5.1.17"),
    ((2, 7), (12, 8)): ("2.26.2", "9.7.1.26"),
    ((2, 8), (12, 8)): ("2.27.3", "9.10.2.21"),
    ((2, 9), (12, 8)): ("2.27.5", "9.10.2.21"),
}

PINNED_VERSIONS: Final = frozenset(version for pair in _LIBRARIES.values() for version in pair)


def wheel_archs(torch: Version, cuda: Version) -> tuple[int, ...] | None:
    """The sm numbers that a wheel has kernels for; None where the table does not know it."""
    rows = [(first, archs) for first, of_cuda, archs in _ARCHS if of_cuda == cuda[:2] and first <= torch[:2]]
    return max(rows)[1] if rows else None


def wheel_libraries(torch: Version, cuda: Version) -> tuple[str, str] | None:
    """(NCCL, cuDNN) that a wheel pins; None where the table does not know it."""
    return _LIBRARIES.get((torch[:2], cuda[:2]))


def runs_on(archs: tuple[int, ...], capability: int) -> bool:
    """Whether kernels for `archs` run on a GPU of `capability`: same major, and not built for a newer minor.

    CUDA C++ Programming Guide, "Binary Compatibility".
    """
    return any(arch // 10 == capability // 10 and arch <= capability for arch in archs)
