"""How a model is split over tensor-parallel ranks, said by the model; pure, without torch.

A model that can be split has a method `tensor_plan()` that returns a `TensorPlan`, or just its `layers`.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from drivetrain.spec.errors import InputError

WORDS: dict[str, str] = {
    "column": "a Linear whose outputs are split",
    "row": "a Linear whose inputs are split, and whose outputs are summed over ranks",
    "vocabulary": "an Embedding or Linear whose rows (tokens, classes) are split; its output is whole",
    "packed": "a Linear of queries, keys and values in one; each rank holds it whole and computes its heads",
    "attention": "a torch.nn.MultiheadAttention, split by heads; its packed weights are held whole",
    "inside": "held whole by each rank, and used on the rank's part: gradients are summed over ranks",
    "replicate": "held whole and computed alike by each rank",
    "region": "a module that splits what it is called with: the gradient of that is summed over ranks once,"
    " instead of by each column layer in it",
}
"""What may be said of a module, and its meaning."""

INSIDE_REGION = frozenset({"column", "packed"})
"""Words of modules that leave the sum over their inputs' gradients to the region that they are in."""


@dataclass(frozen=True, kw_only=True)
class TensorPlan:
    """How a model's modules are split.

    Attributes:
        layers: patterns of module names (as in `named_modules`; `*` matches dots too; the model itself is "")
            and one of `WORDS` for each. The first pattern that matches counts. Every module that has
            parameters of its own must be matched.
        divided: what else the number of ranks must divide, by name ("heads": 16). The sizes of the split
            matrices need not be named.
        notes: what is not split although it might be, to be told to the user.
    """

    layers: Mapping[str, str]
    divided: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for pattern, word in self.layers.items():
            if word not in WORDS:
                known = ", ".join(WORDS)
                raise InputError(f"tensor_plan(): {pattern!r}: {word!r}", "there is no such word", known)

    def word_of(self, module: str) -> str | None:
        """What is said of the module called `module`; None if nothing."""
        return next((w for pattern, w in self.layers.items() if fnmatch.fnmatchcase(module, pattern)), None)


def check_degree(divided: Mapping[str, int], tp: int, world_size: int) -> None:
    """Checks that `tp` ranks can share everything evenly.

    Raises:
        InputError: they cannot; names the nearest degree that can, among those that divide `world_size`.
    """
    uneven = [f"{number} {name}" for name, number in divided.items() if number % tp]
    if not uneven:
        return
    valid = [d for d in range(1, math.gcd(world_size, *divided.values()) + 1)
             if all(number % d == 0 for number in (world_size, *divided.values()))]  # fmt: skip
    nearest = min(valid, key=lambda degree: (abs(math.log(degree / tp)), degree))
    more = f", and {len(uneven) - 3} more" if len(uneven) > 3 else ""
    raise InputError(
        f"tp={tp}",
        f"it does not divide {', '.join(uneven[:3])}{more}",
        f"nearest: mesh tp={nearest}" if nearest > 1 else "strategy fsdp or ddp",
    )
