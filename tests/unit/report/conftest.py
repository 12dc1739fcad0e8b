"""Makes the simulated run importable by the tests beside it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

# pytest's importlib mode puts no test folder on sys.path.
_NAME = "simulated_run"
if _NAME not in sys.modules:
    _spec = importlib.util.spec_from_file_location(_NAME, Path(__file__).with_name("simulated_run.py"))
    assert _spec is not None
    assert _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[_NAME] = _module
    _spec.loader.exec_module(_module)
