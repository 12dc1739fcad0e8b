"""Makes the simulated run and the model of a screen importable by the tests beside them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

# pytest's importlib mode puts no test folder on sys.path.
for _name in ("simulated_run", "screen_model"):
    if _name not in sys.modules:
        _spec = importlib.util.spec_from_file_location(_name, Path(__file__).with_name(f"{_name}.py"))
        assert _spec is not None
        assert _spec.loader is not None
        _module = importlib.util.module_from_spec(_spec)
        sys.modules[_name] = _module
        _spec.loader.exec_module(_module)
