"""Where the time of each step goes, on the device and on the host, without ever waiting for the device.

On CUDA the boundaries between parts are timing events on the current stream: an interval is what the compute
stream spent between them, so a wait that the host hides behind queued kernels costs nothing there. They are
queried later and reused. On the CPU the boundaries are readings of the performance counter.

The host has a ledger of its own (`host_parts`): how long the calling thread stood in each part, whether the
device had work meanwhile or not.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Protocol

import torch

from drivetrain.spec.parts import StepPart
from drivetrain.spec.unknown import Unknown

_NS: Final = 1e-9


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    """Seconds of one finished step.

    Attributes:
        parts: the device's ledger: the parts that were marked; they sum to `total_s`, measured apart.
        total_s: from the end of the previous step to the end of this one (see `StepClock.start_step`).
        host_parts: the host's ledger: seconds of the calling thread in the same parts.
    """

    step: int
    parts: dict[StepPart, float]
    total_s: float
    host_parts: dict[StepPart, float]


class StepClock:
    """Cuts each step into parts. One thread of one rank uses it, in this order:

        clock.start_step(1)
        clock.mark(StepPart.DATA_WAIT)    # what lay between the step's start and here was data wait
        clock.mark(StepPart.FORWARD)      # a part may come several times a step (micro-batches); it adds up
        clock.end_step()                  # what is left is HOST
        for timing in clock.pop_finished(): ...

    A step starts where the one before it ended, so that nothing falls between them. After an evaluation, say
    `start_step(step, after_pause=True)`, or it would count as the first part of the next step.

    Args:
        device: "cpu" or "cuda" types are timed. For others, whose queues this cannot see, nothing is:
            `unavailable` says why, and no timing ever comes out.
        enabled: False makes every call return at once.
        max_pending: steps kept until `pop_finished`; older ones are dropped and counted in `num_dropped`.
    """

    def __init__(self, device: torch.device, *, enabled: bool = True, max_pending: int = 256) -> None:
        self.unavailable: Unknown | None = None
        self.num_dropped = 0
        self._max_pending = max_pending
        self._boundaries: _Boundaries | None = None
        self._open: _Step | None = None
        self._last: _Mark | None = None
        self._pending: deque[_Step] = deque()
        if not enabled:
            self.unavailable = Unknown("the step clock is switched off")
        elif device.type == "cpu":
            self._boundaries = _HostBoundaries()
        elif device.type == "cuda":
            self._boundaries = _CudaBoundaries(device)
        else:
            self.unavailable = Unknown(f"no timing events for device type {device.type}")

    def start_step(self, step: int, *, after_pause: bool = False) -> None:
        """Opens `step` at the end of the previous step, or now if it is the first or `after_pause`.

        A step that was never ended (an error, a retry) is dropped, and the new one starts now.
        """
        if self._boundaries is None:
            return
        if self._last is None or after_pause or self._open is not None:
            self._last = self._boundaries.read()
        self._open = _Step(step=step, start=self._last)

    def mark(self, part: StepPart) -> None:
        """Gives the time since the last mark to `part`.

        Raises:
            RuntimeError: no step is open.
        """
        if self._boundaries is None:
            return
        if self._open is None:
            raise RuntimeError(f"mark({part.value}) outside a step: call start_step first")
        self._last = self._boundaries.read()
        self._open.marks.append((part, self._last))

    def end_step(self) -> None:
        """Gives what is left to HOST and closes the step.

        Raises:
            RuntimeError: no step is open.
        """
        if self._boundaries is None:
            return
        self.mark(StepPart.HOST)
        assert self._open is not None
        self._pending.append(self._open)
        self._open = None
        if len(self._pending) > self._max_pending:
            self._pending.popleft()
            self.num_dropped += 1

    def pop_finished(self) -> list[StepTiming]:
        """The steps that the device has finished since the last call, oldest first. Never waits for it."""
        finished: list[StepTiming] = []
        while self._boundaries is not None and self._pending:
            step = self._pending[0]
            if not self._boundaries.have_passed([mark for _, mark in step.marks]):
                break
            finished.append(_timing(step, self._boundaries))
            # The last boundary lives on as the start of the next step, which gives it back.
            self._boundaries.give_back([step.start, *(mark for _, mark in step.marks[:-1])])
            self._pending.popleft()
        return finished


@dataclass
class _Mark:
    """One boundary: the host's clock, and on CUDA an event on the compute stream."""

    host_ns: int
    event: torch.cuda.Event | None = None


@dataclass
class _Step:
    step: int
    start: _Mark
    marks: list[tuple[StepPart, _Mark]] = field(default_factory=list)


class _Boundaries(Protocol):
    def read(self) -> _Mark: ...
    def have_passed(self, marks: list[_Mark]) -> bool: ...
    def seconds(self, start: _Mark, end: _Mark) -> float: ...
    def give_back(self, marks: list[_Mark]) -> None: ...


class _HostBoundaries:
    def read(self) -> _Mark:
        return _Mark(time.perf_counter_ns())

    def have_passed(self, marks: list[_Mark]) -> bool:  # noqa: ARG002  the clock has passed all it showed
        return True

    def seconds(self, start: _Mark, end: _Mark) -> float:
        return (end.host_ns - start.host_ns) * _NS

    def give_back(self, marks: list[_Mark]) -> None:
        pass


class _CudaBoundaries:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[torch.cuda.Event] = []

    def read(self) -> _Mark:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return _Mark(time.perf_counter_ns(), event)

    def have_passed(self, marks: list[_Mark]) -> bool:
        # All are asked, latest first: the current stream may have changed within the step.
        return all(
            mark.event is not None and mark.event.query()  # type: ignore[no-untyped-call]
            for mark in reversed(marks)
        )

    def seconds(self, start: _Mark, end: _Mark) -> float:
        assert start.event is not None
        assert end.event is not None
        return float(start.event.elapsed_time(end.event)) * 1e-3  # elapsed_time gives milliseconds

    def give_back(self, marks: list[_Mark]) -> None:
        self._free.extend(mark.event for mark in marks if mark.event is not None)


def _timing(step: _Step, boundaries: _Boundaries) -> StepTiming:
    parts: dict[StepPart, float] = {}
    host_parts: dict[StepPart, float] = {}
    previous = step.start
    for part, mark in step.marks:
        parts[part] = parts.get(part, 0.0) + boundaries.seconds(previous, mark)
        host_parts[part] = host_parts.get(part, 0.0) + (mark.host_ns - previous.host_ns) * _NS
        previous = mark
    total_s = boundaries.seconds(step.start, step.marks[-1][1])
    return StepTiming(step=step.step, parts=parts, total_s=total_s, host_parts=host_parts)
