"""What all tests share: the pool of rank processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
# Ranks and loaders of a test share two cores; more threads a process only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Counted bytes are read from torch's flight recorder, which is set up in a rank's first process group.
os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "20000")

from rank_pool import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """`ranks.run(3, function, **arguments)` calls an importable function on three gloo ranks."""
    pool = RankPool()
    yield pool
    pool.close()
