"""The control word: what every rank tells every other about a step, acted on at the same step everywhere.

One small asynchronous all-gather of host numbers a step, on a group of its own. On a GPU the loss is copied
to pinned memory without a sync, and a thread sends it as soon as the copy is there: whatever the training
thread is waiting in meanwhile, so that a rank that waits for the others' words always gets them. A word is
acted on `LAG` steps after it was posted, by all ranks at the same step: no rank decides alone, none waits.
"""

from __future__ import annotations

import math
import queue
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch
import torch.distributed as dist
from torch import Tensor

from drivetrain.engine.certificate import MODULUS
from drivetrain.engine.world import World

LAG = 2
_KEPT = 64


class _Field(IntEnum):
    # Those that come from the device.
    LOSS_SUM = 0
    GRAD_NORM = 1
    WEIGHTS_SUM = 2
    # Those that the host knows.
    WEIGHT = 3
    NUM_SAMPLES = 4
    SAMPLES_SUM = 5
    STEP_S = 6
    DATA_WAIT_S = 7
    SAVE = 8
    STOP = 9
    SAVE_FAILED = 10


@dataclass(frozen=True, kw_only=True)
class LocalWord:
    """What this rank says about one step.

    Attributes:
        samples_sum: `certificate.samples_sum` of what this rank counts.
        step_s, data_wait_s: seconds of the latest step that this rank has timed in full (on a GPU some steps
            back), and those of it that its device stood waiting for data; NaN while none is known.
        save: this rank's clock says that a checkpoint is due.
        save_failed: a checkpoint that was being written meanwhile could not be.
        stop: why this rank was asked to stop, as a small number; 0: it was not.
    """

    weight: float
    num_samples: int
    samples_sum: int
    step_s: float
    data_wait_s: float
    save: bool = False
    stop: int = 0
    save_failed: bool = False


@dataclass(frozen=True, kw_only=True)
class ClusterWord:
    """What all ranks said about one step; lists are by rank.

    `loss` is the mean over the global batch: the sum of sums over the sum of weights. `samples` is the sum of
    all ranks' `samples_sum`, and `weights_sums` what `certificate.weights_sum` gave; None where it was not
    taken.
    """

    step: int
    loss: float
    grad_norm: float | None
    loss_sums: tuple[float, ...]
    num_samples: tuple[int, ...]
    samples: int
    weights_sums: tuple[float, ...] | None
    step_s: tuple[float, ...]
    data_wait_s: tuple[float, ...]
    save: bool
    stop: int
    save_failed: bool

    def nonfinite(self, *, has_scaler: bool) -> tuple[str, tuple[int, ...], float] | None:
        """What was NaN or infinite in this step, on which ranks, and its value; None if nothing was.

        With a loss scaler an infinite gradient is ordinary: that step is skipped and the scale lowered.
        """
        ranks = tuple(r for r, value in enumerate(self.loss_sums) if not math.isfinite(value))
        if ranks:
            return "the loss", ranks, self.loss_sums[ranks[0]]
        if self.grad_norm is not None and not has_scaler and not math.isfinite(self.grad_norm):
            return "the gradient's norm", tuple(range(len(self.loss_sums))), self.grad_norm
        return None


@dataclass(kw_only=True)
class _Pending:
    step: int
    host: Tensor  # (fields,), float64, pinned on GPUs
    copied: torch.cuda.Event | None
    has_grad_norm: bool
    has_weights_sum: bool
    gathered: Tensor | None = None
    work: dist.Work | None = None
    is_sent: threading.Event = field(default_factory=threading.Event)
    problem: BaseException | None = None


class ControlChannel:
    """Sends this rank's words and receives everybody's. Constructed by all ranks, in the same order."""

    def __init__(self, world: World, timeout_s: float) -> None:
        self._world = world
        self._is_cuda = world.device.type == "cuda"
        self._group = world.new_host_group(timeout_s).group
        self._pending: deque[_Pending] = deque()
        self._received: dict[int, ClusterWord] = {}
        self._due: deque[ClusterWord] = deque()
        self._outbox: queue.SimpleQueue[_Pending] | None = None
        if self._is_cuda and self._group is not None:
            self._outbox = queue.SimpleQueue()
            threading.Thread(target=self._send_each, name="control-word", daemon=True).start()

    def post(
        self,
        step: int,
        word: LocalWord,
        *,
        loss_sum: Tensor,
        grad_norm: Tensor | None = None,
        weights_sum: Tensor | None = None,
    ) -> None:
        """Posts the word of `step`. Called by all ranks once a step, in step order; never blocks on the GPU's
        current step, but on the word of `LAG` steps ago, which bounds how far the host runs ahead."""
        host = torch.zeros(len(_Field), dtype=torch.float64, pin_memory=self._is_cuda)
        host[_Field.WEIGHT] = word.weight
        host[_Field.NUM_SAMPLES] = word.num_samples
        host[_Field.SAMPLES_SUM] = word.samples_sum
        host[_Field.STEP_S] = word.step_s
        host[_Field.DATA_WAIT_S] = word.data_wait_s
        host[_Field.SAVE] = word.save
        host[_Field.STOP] = word.stop
        host[_Field.SAVE_FAILED] = word.save_failed
        unknown = torch.full((), math.nan, dtype=torch.float64, device=loss_sum.device)
        values = [
            loss_sum.detach().double(),
            grad_norm.detach().double() if grad_norm is not None else unknown,
            weights_sum if weights_sum is not None else unknown,
        ]
        host[: len(values)].copy_(torch.stack(values), non_blocking=True)
        event = None
        if self._is_cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        pending = _Pending(
            step=step,
            host=host,
            copied=event,
            has_grad_norm=grad_norm is not None,
            has_weights_sum=weights_sum is not None,
        )
        self._pending.append(pending)
        if self._outbox is not None:
            self._outbox.put(pending)
        elif not self._is_cuda:
            self._send(pending)
        while len(self._pending) > LAG:
            self._receive_oldest()

    def take_due(self) -> Sequence[ClusterWord]:
        """The words that became due since the last call; the same on every rank at the same step."""
        words = tuple(self._due)
        self._due.clear()
        return words

    def drain(self) -> Sequence[ClusterWord]:
        """Waits for all words posted so far. Called by all ranks, at the same step."""
        while self._pending:
            self._receive_oldest()
        return self.take_due()

    def wait_for(self, step: int) -> ClusterWord:
        """The word of `step`, waiting for it if need be. Any rank may call it, alone, before posting anew."""
        for pending in list(self._pending):
            if pending.step <= step:
                self._receive(pending)
        if step not in self._received:
            raise RuntimeError(
                f"the word of step {step} is not kept: read a step's loss within {_KEPT} steps"
            )
        return self._received[step]

    def _receive_oldest(self) -> None:
        oldest = self._pending.popleft()
        self._due.append(self._receive(oldest))

    def _receive(self, pending: _Pending) -> ClusterWord:
        if pending.step not in self._received:
            if self._outbox is None and not pending.is_sent.is_set():
                self._send(pending)  # one GPU alone: nobody else waits for it
            pending.is_sent.wait()
            if pending.problem is not None:
                raise RuntimeError(f"the control word of step {pending.step} failed") from pending.problem
            if pending.work is not None:
                pending.work.wait()
            self._received[pending.step] = _decode(pending)
            for old in [s for s in self._received if s < pending.step - _KEPT]:
                del self._received[old]
        return self._received[pending.step]

    def _send_each(self) -> None:
        assert self._outbox is not None
        torch.cuda.set_device(self._world.device)
        while True:
            pending = self._outbox.get()
            try:
                self._send(pending)
            except BaseException as error:  # noqa: BLE001 - raised again where the word is waited for
                pending.problem = error
                pending.is_sent.set()

    def _send(self, pending: _Pending) -> None:
        if pending.copied is not None:
            pending.copied.synchronize()
        pending.gathered = torch.empty(self._world.size, len(_Field), dtype=torch.float64)
        if self._group is None:
            pending.gathered[0] = pending.host
        else:
            pending.work = dist.all_gather(
                list(pending.gathered.unbind(0)), pending.host, group=self._group, async_op=True
            )
        pending.is_sent.set()


def _decode(pending: _Pending) -> ClusterWord:
    assert pending.gathered is not None
    table = pending.gathered.tolist()
    columns = list(zip(*table, strict=True))
    weight = sum(columns[_Field.WEIGHT])
    norms = columns[_Field.GRAD_NORM]
    return ClusterWord(
        step=pending.step,
        loss=sum(columns[_Field.LOSS_SUM]) / weight if weight else float("nan"),
        grad_norm=norms[0] if pending.has_grad_norm else None,
        loss_sums=columns[_Field.LOSS_SUM],
        num_samples=tuple(int(n) for n in columns[_Field.NUM_SAMPLES]),
        samples=sum(int(n) for n in columns[_Field.SAMPLES_SUM]) % MODULUS,
        weights_sums=columns[_Field.WEIGHTS_SUM] if pending.has_weights_sum else None,
        step_s=columns[_Field.STEP_S],
        data_wait_s=columns[_Field.DATA_WAIT_S],
        save=any(columns[_Field.SAVE]),
        stop=int(max(columns[_Field.STOP])),
        save_failed=any(columns[_Field.SAVE_FAILED]),
    )


class WeightTotals:
    """Sums the weights of a step over ranks, overlapped with its forward. Constructed by all ranks."""

    def __init__(self, world: World, timeout_s: float) -> None:
        self._group = world.new_host_group(timeout_s).group

    def start(self, local: float) -> PendingTotal:
        """Called by all ranks, once a step."""
        total = torch.tensor([local], dtype=torch.float64)
        work = None
        if self._group is not None:
            work = dist.all_reduce(total, group=self._group, async_op=True)
        return PendingTotal(total, work)


class PendingTotal:
    """A sum under way."""

    def __init__(self, total: Tensor, work: dist.Work | None) -> None:
        self._total = total
        self._work = work

    def value(self) -> float:
        """Waits for the slowest rank's weight, at most the group's time-out."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return float(self._total)
