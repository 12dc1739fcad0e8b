"""How many outputs a classifier gets, checked without torch."""

from __future__ import annotations

from typing import Literal

from drivetrain.spec.errors import InputError


def settle_num_classes(asked: int | Literal["auto"], *, in_data: int) -> int:
    """The number of classes of the model for data of `in_data` classes.

    Raises:
        InputError: the model would have fewer than the data, or there is nothing to tell apart.
    """
    num_classes = in_data if asked == "auto" else asked
    if num_classes < in_data:
        raise InputError(
            f"model.num_classes {num_classes}",
            f"the data has {in_data} classes",
            f"set it to {in_data} or more, or leave it at auto",
        )
    if num_classes < 2:
        raise InputError(
            f"a classifier of {num_classes} class",
            "the data has one class only, and a classifier needs at least two",
            "add a folder for each further class; --data.path names the folder that holds them",
        )
    return num_classes
