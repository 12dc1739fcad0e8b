"""Something done in a thread of its own while training goes on, whose end is looked at now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Background(Generic[_T]):
    """Starts `act` at once. What it raises is raised by `result`.

    A daemon: a process that fails meanwhile does not wait for it.
    """

    def __init__(self, act: Callable[[], _T], *, name: str) -> None:
        self._act = act
        self._result: list[_T] = []
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def has_failed(self) -> bool:
        """False while it is not known."""
        return self.is_over and self._problem is not None

    def wait(self, timeout_s: float | None = None) -> None:
        self._thread.join(timeout_s)

    def result(self) -> _T:
        """Waits for the end."""
        self.wait()
        if self._problem is not None:
            raise self._problem
        return self._result[0]

    def _run(self) -> None:
        try:
            self._result.append(self._act())
        except BaseException as problem:  # noqa: BLE001 - raised again where the result is asked for
            self._problem = problem
