"""The compiled stand-in for libnvidia-ml.so.1 (nvml_stub.c says how it is configured), for tests.

Fixtures of tests/conftest.py: `nvml_stub` gives an `NvmlStub` with an empty configuration (eight idle GPUs).
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from ctypes import CDLL
from pathlib import Path
from typing import Any

CONFIG_VARIABLE = "NVML_STUB_CONFIG"
_SOURCE = Path(__file__).with_name("nvml_stub.c")


def compiler() -> str | None:
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def build(folder: Path) -> Path:
    """Compiles the library into `folder`, which then goes on LD_LIBRARY_PATH; returns its path."""
    library = folder / "libnvidia-ml.so.1"
    command = [str(compiler()), "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    done = subprocess.run(
        [*command, "-fvisibility=hidden", "-o", str(library), str(_SOURCE)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return library


def uuid(index: int) -> str:
    """The UUID of GPU `index` where the configuration gives none."""
    return f"GPU-{index:08x}-1111-2222-3333-444444444444"


class NvmlStub:
    """The library with a configuration file of the test's own."""

    def __init__(self, library: Path, config: Path) -> None:
        self.library = library
        self.config = config
        self.write("")

    def write(self, text: str) -> None:
        """Replaces the configuration at once; programs that run see it with their next call."""
        fresh = self.config.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.config)

    def environment(self) -> dict[str, str]:
        """For a child process: its NVML is the stub."""
        folders = (str(self.library.parent), os.environ.get("LD_LIBRARY_PATH", ""))
        return {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders)),
            CONFIG_VARIABLE: str(self.config),
        }

    def module(self) -> Any:
        """nvidia-ml-py, a copy of its own, on the stub in this process; CONFIG_VARIABLE must be set here."""
        return _module_on(self.library)


@functools.cache
def _module_on(library: Path) -> Any:
    real = importlib.util.find_spec("pynvml")
    assert real is not None
    assert real.origin is not None
    spec = importlib.util.spec_from_file_location("pynvml_on_stub", real.origin)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pynvml_on_stub"] = module  # where it looks itself up to name its errors
    spec.loader.exec_module(module)
    module.nvmlLib = CDLL(str(library))
    return module
