"""Which file a recipe's name or path means."""

from __future__ import annotations

import difflib
from pathlib import Path

from drivetrain.spec.errors import InputError

_PACKAGED = Path(__file__).parents[1] / "recipes"
# In a checkout the recipes lie beside src/, and an editable install finds them there.
_CHECKOUT = Path(__file__).parents[3] / "recipes"


def recipes_folder() -> Path | None:
    """The folder of the recipes that come with drivetrain, or None where it has none (a broken install)."""
    if _PACKAGED.is_dir():
        return _PACKAGED
    if _CHECKOUT.is_dir() and (_CHECKOUT.parent / "pyproject.toml").is_file():
        return _CHECKOUT
    return None


def recipe_names() -> tuple[str, ...]:
    """The names that `drivetrain train NAME` takes without a path."""
    folder = recipes_folder()
    return tuple(sorted(path.stem for path in folder.glob("*.yaml"))) if folder else ()


def find_recipe(written: str) -> Path:
    """The run file that `written` means: a path, or the bare name of a recipe that comes with drivetrain.

    Raises:
        InputError: there is no such file; names near ones.
    """
    path = Path(written)
    if path.is_file():
        return path
    folder = recipes_folder()
    if folder is not None and path.name == written and (folder / f"{written}.yaml").is_file():
        return folder / f"{written}.yaml"
    if path.is_dir():
        raise InputError(f"run file {written}", "it is a folder", _near(written, path))
    raise InputError(f"run file {written}", "there is no such file", _near(written, path.parent))


def _near(written: str, folder: Path) -> str:
    files = [str(folder / path.name) for path in sorted(folder.glob("*.y*ml"))] if folder.is_dir() else []
    close = difflib.get_close_matches(written, [*files, *recipe_names()], n=3, cutoff=0.5) or files[:3]
    known = f"recipes that come with drivetrain: {', '.join(recipe_names()) or 'none found'}"
    return f"did you mean {' or '.join(close)}? {known}" if close else f"check the path; {known}"
