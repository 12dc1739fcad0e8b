"""What this process has imported, told to the launcher: it forks restarted ranks from one that has it."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import drivetrain


def write_imports(path: Path) -> None:
    """Writes the names of the installed modules imported so far, in that order, one a line; atomically.

    A user's own modules are left out: their code may do anything when it is imported, and may have been
    changed. So is what runs as a program. Where it cannot be written, restarted ranks take longer.
    """
    if not path.parent.is_dir():  # no launcher of ours
        return
    roots = _roots()
    names = [name for name, module in list(sys.modules.items()) if _is_installed(name, module, roots)]
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text("\n".join(names) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)


def _roots() -> tuple[str, ...]:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    own = Path(drivetrain.__file__).parent
    return tuple(f"{folder}{os.sep}" for folder in (*folders, str(own)))


def _is_installed(name: str, module: ModuleType, roots: tuple[str, ...]) -> bool:
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None)
    return (
        isinstance(origin, str)
        and origin.startswith(roots)
        and getattr(spec, "name", None) == name
        and name.isascii()
        and name != "drivetrain.train.worker"
    )
