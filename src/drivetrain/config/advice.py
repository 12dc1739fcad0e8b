"""Values that are valid, but hardly meant: said, never refused."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drivetrain.config.schema import RunConfig

# Below this, a rate that was tuned for another batch is within what people tune by.
_FAR = 4


def learning_rate(config: RunConfig, written: Mapping[str, Any], changed: Collection[str]) -> Iterator[str]:
    """A run file's rate that is used with a batch far from the file's own.

    Args:
        written: the run file's own values, as read.
        changed: keys that were set beside the file.
    """
    batch = written.get("global_batch")
    optim = written.get("optim")
    is_the_files = isinstance(optim, dict) and "lr" in optim and "optim.lr" not in changed
    if not is_the_files or not isinstance(batch, int) or batch < 1:
        return
    now = config.global_batch
    if now >= _FAR * batch or batch >= _FAR * now:
        yield (
            f"optim.lr {config.optim.lr:g} was written for a global batch of {batch}, and is used with {now}:"
            " it is never rescaled for you; set --lr as well"
        )


def warm_up(warmup_steps: int, total_steps: int) -> Iterator[str]:
    """A warm-up that takes the whole run."""
    if total_steps and warmup_steps >= total_steps:
        yield (
            f"the warm-up takes {warmup_steps} steps and the run has {total_steps}: the learning rate only"
            " rises, to its peak at best; shorten schedule.warmup_epochs or warmup_steps"
        )
