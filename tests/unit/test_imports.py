"""What importing drivetrain costs: torch comes only with the rooms that compute."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import drivetrain

ROOMS_WITHOUT_TORCH = (
    *("spec", "config", "hardware", "telemetry", "launch", "report"),
    *("doctor", "diagnose", "bench", "cli"),
)
# The parts of those rooms that run inside a rank.
WITH_TORCH = (
    "drivetrain.telemetry.ranks",
    "drivetrain.launch.agent",
    "drivetrain.doctor.functional_worker",
    "drivetrain.doctor.torch_worker",
    "drivetrain.bench.parity_fingerprint",
    "drivetrain.bench.parity_trial",
    "drivetrain.bench.traffic_worker",
)
SOURCE = Path(drivetrain.__file__).parent


def fresh(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules_of(room):
    found = pkgutil.walk_packages([str(SOURCE / room)], f"drivetrain.{room}.")
    return [item.name for item in found if not item.name.startswith(WITH_TORCH)]


@pytest.mark.parametrize("room", ROOMS_WITHOUT_TORCH)
def test_no_module_of_the_room_imports_torch(room):
    names = modules_of(room)
    assert names
    code = f"import importlib, sys\nfor name in {names!r}:\n    importlib.import_module(name)\n"
    assert fresh(code + "    assert 'torch' not in sys.modules, name\nprint('none')") == "none\n"


def test_the_package_itself_imports_nothing_heavy():
    heavy = ("torch", "numpy", "pydantic", "yaml", "rich", "click")
    code = f"import sys, drivetrain\nprint([name for name in {heavy!r} if name in sys.modules])"
    assert fresh(code) == "[]\n"
