"""What all tests share: the pool of rank processes, and a stand-in for NVML."""

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

from nvml_stub import CONFIG_VARIABLE, NvmlStub, build, compiler
from rank_pool import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """`ranks.run(3, function, **arguments)` calls an importable function on three gloo ranks."""
    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def _nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if compiler() is None:
        pytest.skip("no C compiler (cc, gcc or clang) to build the NVML stub with")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml_stub(_nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlStub:
    """NVML with eight idle GPUs: `write` configures it, `module()` is for this process, `environment()` for
    others."""
    stub = NvmlStub(_nvml_library, tmp_path / "nvml.txt")
    monkeypatch.setenv(CONFIG_VARIABLE, str(stub.config))
    return stub
