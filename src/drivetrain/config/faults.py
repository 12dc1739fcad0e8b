"""What is wrong with a run file: every fault at once, each with its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drivetrain.spec.errors import InputError

# More than this helps nobody; the rest is counted.
_MOST_SHOWN = 50


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """Two or more fields that cannot stand together.

    Attributes:
        keys: the fields that took part, dotted; the first one's place is reported.
        found: what is wrong with them.
        do: what to do about it.
    """

    keys: tuple[str, ...]
    found: str
    do: str

    def __str__(self) -> str:
        return f"{self.found}; {self.do}"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        where: "recipes/mine.yaml:4:3", "the command line, --optim.lr", or "" where nothing was written.
        key: the dotted key, or "" for a fault of the whole file.
        found: what is wrong, and where known the nearest right thing.
    """

    where: str
    key: str
    found: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.key, self.found) if part)


class ConfigErrors(InputError):  # noqa: N818  it stands for several
    """The run file or its overrides cannot be used. `faults` holds all that is wrong, in reading order."""

    def __init__(self, asked: str, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        found = "1 error" if len(self.faults) == 1 else f"{len(self.faults)} errors"
        do = "drivetrain train RECIPE --print-config shows every key with its value"
        super().__init__(asked, found, do)

    def __str__(self) -> str:
        lines = [f"{self.asked}: {self.found}", *(f"  {fault}" for fault in self.faults[:_MOST_SHOWN])]
        if len(self.faults) > _MOST_SHOWN:
            lines.append(f"  … and {len(self.faults) - _MOST_SHOWN} more")
        return "\n".join([*lines, f"  → {self.do}"])

    def __reduce__(self) -> tuple[type[ConfigErrors], tuple[str, tuple[Fault, ...]]]:
        return type(self), (self.asked, self.faults)
