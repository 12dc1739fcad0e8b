"""Sinks: what they must do, where each is found, and how several are fed without endangering the training."""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from drivetrain.spec.errors import InputError
from drivetrain.spec.run_dir import RunDir

_log = logging.getLogger(__name__)

# Each module has `open_sink(request: SinkRequest) -> Sink`.
SINKS: Final[dict[str, str]] = {
    "csv": "drivetrain.telemetry.sinks.csv",
    "tensorboard": "drivetrain.telemetry.sinks.tensorboard",
    "wandb": "drivetrain.telemetry.sinks.wandb",
}


class Sink(Protocol):
    """A place for scalars. Used by rank 0 only; any method may raise, and the sink is then dropped."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Records `values` after `step` steps (`StepEvent.step`). Names may be new at any time."""

    def text(self, step: int, name: str, text: str) -> None:
        """Records a text, where the sink has a place for texts."""

    def close(self) -> None:
        """Writes what is held back. Called once."""


@dataclass(frozen=True, kw_only=True)
class SinkRequest:
    """What a sink needs to know when it opens.

    Attributes:
        start_step: steps already done. What an earlier start recorded after that step is superseded.
        config: the resolved run file, for sinks that show it.
        wandb_mode: "offline" or "online" ("off" opens none).
        wandb_project: the project's name there.
    """

    run_dir: RunDir
    start_step: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    wandb_mode: str = "offline"
    wandb_project: str = "drivetrain"


def open_sinks(
    names: Sequence[str], request: SinkRequest, *, on_warning: Callable[[str], None] = _log.warning
) -> SinkSet:
    """Opens the sinks called `names`. One that fails to open is said through `on_warning` and left out.

    Raises:
        InputError: a name is not in the table, or the sink's package is not installed.
    """
    for name in names:
        if name not in SINKS:
            near = difflib.get_close_matches(name, SINKS, n=1) or sorted(SINKS)
            raise InputError(f"metrics sink {name!r}", "there is none of that name", f"use {', '.join(near)}")
    opened: dict[str, Sink] = {}
    for name in names:
        try:
            opened[name] = importlib.import_module(SINKS[name]).open_sink(request)
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001  a sink's library may raise anything; training matters more
            on_warning(f"metrics sink {name} could not be opened and is left out: {_describe(error)}")
    return SinkSet(opened, on_warning=on_warning)


class SinkSet:
    """Feeds several sinks. One that raises is said once, through `on_warning`, and gets nothing more."""

    def __init__(self, sinks: Mapping[str, Sink], *, on_warning: Callable[[str], None]) -> None:
        self._sinks = dict(sinks)
        self._on_warning = on_warning

    @property
    def names(self) -> tuple[str, ...]:
        """The sinks that still work."""
        return tuple(self._sinks)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._each(lambda sink: sink.scalars(step, values))

    def text(self, step: int, name: str, text: str) -> None:
        self._each(lambda sink: sink.text(step, name, text))

    def close(self) -> None:
        """Closes all; a second call does nothing."""
        self._each(lambda sink: sink.close())
        self._sinks.clear()

    def _each(self, use: Callable[[Sink], None]) -> None:
        for name, sink in list(self._sinks.items()):
            try:
                use(sink)
            except Exception as error:  # noqa: BLE001  a sink's library may raise anything; training matters more
                del self._sinks[name]
                self._on_warning(
                    f"metrics sink {name} failed and is left out from now on: {_describe(error)}"
                )


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
