"""Which token files a path means. Torch-free, as the command line asks before anything is launched."""

from __future__ import annotations

from pathlib import Path

from drivetrain.spec.errors import InputError

TRAIN, VAL = "train.tokens", "val.tokens"


def token_places(path: str | Path) -> tuple[Path, ...]:
    """One token file, to be split; or train.tokens and, if it is there, val.tokens of a folder.

    Raises:
        InputError: the folder has no train.tokens. Whether a file can be used, its header says.
    """
    path = Path(path)
    if not path.is_dir():
        return (path,)
    places = tuple(place for place in (path / TRAIN, path / VAL) if place.is_file())
    if not places or places[0].name != TRAIN:
        raise InputError(
            f"text in the folder {path}",
            f"it has no {TRAIN}",
            f"name a token file, or make one: drivetrain data prepare --text … -o {path / TRAIN}",
        )
    return places
