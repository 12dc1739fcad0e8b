"""The public names are these and no others, and each can be had without importing torch beforehand."""

import subprocess
import sys

import drivetrain as dt

PUBLIC = {
    "BadSampleError",
    "CheckpointError",
    "CheckpointPolicy",
    "InputError",
    "LoaderError",
    "MicroBatch",
    "NonFiniteLossError",
    "Objective",
    "Run",
    "Task",
    "Trainer",
    "__version__",
    "cross_entropy",
}


def test_the_public_names_are_these():
    assert set(dt.__all__) == PUBLIC == set(dir(dt))


def test_every_public_name_is_there_and_documented():
    for name in PUBLIC - {"__version__"}:
        assert getattr(dt, name).__doc__, name


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, drivetrain; print(sorted({'torch', 'numpy', 'pydantic', 'yaml'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "[]"
