"""How many data workers a rank gets and why, and what a worker process must know about its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from drivetrain.spec.errors import InputError

# Workers are forked: a user's closures, lambdas and open handles need not pickle, and an index of millions of
# files is shared, not copied. This is torch's own default on Linux up to Python 3.13; from 3.14 on
# multiprocessing would take forkserver, so it is said explicitly.
START_METHOD = "fork"

# More decoding processes than this for one rank starve on its single receiving process.
_MOST_WORKERS = 16
_DEFAULT_PREFETCH = 4
_PR_SET_PDEATHSIG = 1
# Sent to a whole job step by schedulers, or by a terminal to its foreground processes.
_JOB_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, kw_only=True)
class LoaderPlan:
    """How one rank loads its data.

    Attributes:
        workers: processes beside the rank's own; 0 reads in the rank's process.
        prefetch: micro-batches that each worker reads ahead.
        pin_memory: whether batches are put into page-locked memory on their way to the GPU.
        reason: why, to be printed.
        timeout_s: how long a micro-batch may take before the run is ended as hung.
    """

    workers: int = 0
    prefetch: int = _DEFAULT_PREFETCH
    pin_memory: bool = False
    reason: str = "read in the rank's own process"
    timeout_s: float = 600.0


def plan_loader(
    *,
    workers: int | Literal["auto"] = "auto",
    prefetch: int | Literal["auto"] = "auto",
    pin_memory: bool | Literal["auto"] = "auto",
    num_cpus: int,
    local_world_size: int,
    cost: Literal["memory", "decode"],
    device_type: str,
) -> LoaderPlan:
    """Chooses what the user left to `auto`.

    Args:
        num_cpus: CPUs this machine grants all ranks on it together (the cgroup's quota, not the hardware's).
        local_world_size: ranks on this machine.
        cost: what a sample costs: "memory" is a look-up, "decode" is reading and decoding a file.
        device_type: where the model runs: "cuda", "cpu", …

    Raises:
        InputError: a number that the user gave is out of range.
    """
    _check("--workers", workers, at_least=0)
    _check("--data.prefetch", prefetch, at_least=1)
    if workers == "auto":
        count, reason = _auto_workers(num_cpus, local_world_size, cost, device_type)
    else:
        count, reason = workers, f"{workers} data workers, as set"
        if workers * local_world_size > num_cpus:
            reason += f"; with {local_world_size} ranks here that is more than this machine's {num_cpus} CPUs"
    pinned = pin_memory is True or pin_memory == "auto"
    if pin_memory is True and device_type != "cuda":
        reason += f"; pin_memory is of no use on {device_type} and stays off"
    return LoaderPlan(
        workers=count,
        prefetch=_DEFAULT_PREFETCH if prefetch == "auto" else prefetch,
        pin_memory=pinned and device_type == "cuda",
        reason=reason,
    )


def _auto_workers(num_cpus: int, local_world_size: int, cost: str, device_type: str) -> tuple[int, str]:
    if cost == "memory":
        return 0, "0 data workers: the data is in memory, handing it between processes would cost more"
    per_rank = num_cpus // local_world_size
    share = f"{num_cpus} CPUs for {local_world_size} rank{'s' * (local_world_size > 1)} here"
    if device_type != "cuda":
        # The model computes on the same CPUs: decoding gets a quarter, and none of them where there is but
        # one.
        count = min(_MOST_WORKERS, -(-per_rank // 4)) if per_rank > 1 else 0
        return count, f"{count} data workers: {share}, which also run the model"
    count = min(_MOST_WORKERS, max(1, per_rank - 1))
    usual = (
        f"the usual 2 to 4 a GPU would be {2 * local_world_size} to {4 * local_world_size} on this machine"
    )
    limit = f", at most {_MOST_WORKERS}" if count == _MOST_WORKERS else ""
    return count, f"{count} data workers a rank: {share}, one each left to the rank itself{limit}; {usual}"


def _check(key: str, value: int | str, *, at_least: int) -> None:
    if value != "auto" and (not isinstance(value, int) or value < at_least):
        raise InputError(
            f"{key} {value}", f"it must be at least {at_least}", f"set {key} to a number, or auto"
        )


@contextmanager
def starting_workers() -> Iterator[None]:
    """Holds back the job's signals and silences two warnings while data workers are forked.

    Until a worker has run what `worker_start` gives it, such a signal would end it; the mask set here is
    inherited. The rank gets what came in the meantime when the block ends, if not before by another thread.

    From Python 3.12 on, forking a process with threads warns that the child may deadlock on a lock that
    another thread held. A torch process always has threads. The risk is the one torch's data loader has
    always had; what keeps it small is that workers only read, decode and collate on the CPU: they touch no
    GPU, no process group and no logging of the parent. torch's own advice on the number of workers is
    answered by the plan's reason.
    """
    mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, _JOB_SIGNALS)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=r".*multi-threaded, use of fork\(\)", category=DeprecationWarning
            )
            warnings.filterwarnings(
                "ignore", message=r"This DataLoader will create \d+ worker", category=UserWarning
            )
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)


def worker_start() -> Callable[[int], None]:
    """What each forked worker runs first. Call it in the process and thread that will fork.

    The job's signals are for the rank to answer: SIGTERM or SIGUSR1 sent to a whole job step, or Ctrl-C in a
    terminal, would end the workers while the rank wants to finish its step and save. Forked workers would
    also run the rank's own handlers. So they ignore these, and end with the loader or with their parent.
    """
    parent = os.getpid()
    # PDEATHSIG fires when the forking *thread* ends, so it is only asked for where that is the main thread.
    tied = threading.current_thread() is threading.main_thread() and sys.platform == "linux"

    def start(worker_id: int) -> None:  # noqa: ARG001 - torch passes it
        for number in _JOB_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _JOB_SIGNALS)
        if tied:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)

    return start
