"""How all ranks stop at the same step, whichever of them was asked to."""

from __future__ import annotations

from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor

from drivetrain.engine.control import LAG
from drivetrain.engine.world import World
from drivetrain.train.interruption import TIME_LIMIT, describe, listen
from drivetrain.train.time_limit import TimeLimit


class Stopping:
    """This rank's wish to stop, and what all ranks agreed on.

    In training the wish travels in the control word. Where there is none (before the first step, in an
    evaluation, after a save) ranks ask each other here.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._interruption = listen()
        self._limit = TimeLimit() if world.rank == 0 else None  # one clock decides
        self.agreed = 0

    @property
    def has_agreed(self) -> bool:
        """Whether all ranks stop; the same on every rank at the same point of the run."""
        return self.agreed != 0

    @property
    def reason(self) -> str:
        return describe(self.agreed)

    def wish(self, step_s: float) -> int:
        """This rank's code; 0 for none. `step_s` is a step's time, NaN while unknown."""
        if self._limit is not None and not self._interruption.code and self._limit.is_near(step_s):
            self._interruption.code = TIME_LIMIT
        return self._interruption.code

    def saved(self, seconds: float) -> None:
        if self._limit is not None:
            self._limit.saved(seconds)

    def agree(self, step_s: float) -> bool:
        """Asks all ranks now. Called by all ranks; waits for all."""
        self.agreed = self.agreed or max(self._world.gather(self.wish(step_s)))
        return self.has_agreed

    def poll(self) -> StopPoll:
        return StopPoll(self, self._world)


class StopPoll:
    """Asks during a stretch of equally many rounds on every rank (the batches of an evaluation), without
    waiting for the slowest in each: an answer is read `LAG` rounds later."""

    def __init__(self, stopping: Stopping, world: World) -> None:
        self._stopping = stopping
        self._world = world
        self._pending: deque[tuple[Tensor, dist.Work | None]] = deque()

    def __call__(self) -> bool:
        """Whether to end here; called by all ranks once a round."""
        code = torch.tensor([self._stopping.wish(float("nan"))])
        work = None
        if self._world.control is not None:
            work = dist.all_reduce(code, dist.ReduceOp.MAX, group=self._world.control, async_op=True)
        self._pending.append((code, work))
        while len(self._pending) > LAG:
            self._read_oldest()
        return self._stopping.has_agreed

    def close(self) -> None:
        """Waits for the answers that are still out. Called by all ranks after as many rounds."""
        while self._pending:
            self._read_oldest()

    def _read_oldest(self) -> None:
        code, work = self._pending.popleft()
        if work is not None:
            work.wait()
        self._stopping.agreed = self._stopping.agreed or int(code)
