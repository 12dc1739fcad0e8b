"""A run file and its overrides become a RunConfig, or a report of everything that is wrong with them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

from drivetrain.config import advice
from drivetrain.config.draft import Draft, apply, default_name, read_file
from drivetrain.config.overrides import Override
from drivetrain.config.recipe_files import find_recipe
from drivetrain.config.schema import RunConfig
from drivetrain.config.validate import validate


def load(recipe: str | Path | None = None, overrides: Sequence[Override] = ()) -> RunConfig:
    """Reads a run file and applies `overrides` in order (later ones win).

    Args:
        recipe: a path, or the name of a recipe that comes with drivetrain; None: the defaults.

    Raises:
        InputError: there is no such file, or it cannot be read as text.
        ConfigErrors: (an InputError) unknown keys, values of a wrong type or out of range, and fields that
            contradict each other, all of them at once.
    """
    return load_with_advice(recipe, overrides)[0]


def load_with_advice(
    recipe: str | Path | None = None, overrides: Sequence[Override] = ()
) -> tuple[RunConfig, tuple[str, ...]]:
    """As `load`; also what the user should hear about values that are valid but hardly meant."""
    if recipe is None:
        draft = Draft(source="the command line")
    else:
        path = find_recipe(str(recipe))
        draft = read_file(path)
    written = copy.deepcopy(draft.raw)
    for override in overrides:
        apply(draft, override)
    default_name(draft, None if recipe is None else path)
    config = validate(draft)
    changed = {override.key for override in overrides}
    return config, tuple(advice.learning_rate(config, written, changed))
