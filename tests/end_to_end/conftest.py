"""Runs of the real command line, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

REPOSITORY = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Ended:
    """A finished process: exit code, stdout and stderr."""

    code: int
    out: str
    err: str


Shell = Callable[..., Ended]


@pytest.fixture
def shell(tmp_path) -> Shell:
    """`shell("drivetrain", "train", …)` runs a program of this environment in an empty folder."""

    def run(
        program: str, *args: object, timeout_s: float = 90, cwd: Path = tmp_path, **variables: str
    ) -> Ended:
        path = BIN / program
        environ = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        done = subprocess.run(
            [str(path if path.exists() else program), *map(str, args)],
            cwd=cwd,
            env=environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def images(tmp_path) -> Path:
    """train/ and val/ with two classes that differ in brightness; 14 and 3 images each."""
    root = tmp_path / "images"
    generator = np.random.default_rng(0)
    for split, count in (("train", 14), ("val", 3)):
        for label, name in enumerate(("dark", "light")):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 100, (40, 48, 3), dtype=np.uint8) + np.uint8(120 * label)
                Image.fromarray(pixels).save(folder / f"{number:02}.jpg")
    return root
