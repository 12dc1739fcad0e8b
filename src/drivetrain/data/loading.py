"""Micro-batches read in order, in this process or by worker processes that read ahead."""

from __future__ import annotations

import atexit
import mmap
import re
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from drivetrain.data.bad_samples import ReadFailure
from drivetrain.data.batch import MicroBatch
from drivetrain.data.position import Slots
from drivetrain.data.workers import START_METHOD, LoaderPlan, starting_workers, worker_start
from drivetrain.spec.errors import LoaderError

# torch says these by text only.
_WORKER_DIED = re.compile(
    r"^(DataLoader worker \(pid|DataLoader timed out|Pin memory thread|Too many open files)"
)
_LAST_WAIT_S = 5.0


class Reader(Protocol):
    """Reads the samples at some slots."""

    def read(self, slots: Slots) -> MicroBatch | ReadFailure: ...


class StopFlag:
    """One byte shared with forked workers, so that they give up between two samples. Not a multiprocessing
    Event: a worker killed inside one leaves its lock taken, and closing would hang."""

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)

    def set(self) -> None:
        self._byte[0] = 1

    def is_set(self) -> bool:
        return self._byte[0] == 1


class OrderedLoader:
    """Iterates over what `reader` makes of each of `slots`, in their order.

    Args:
        make_reader: called once, with the function that says whether to give up.

    Iterating raises BadSampleError or InputError for what the data is at fault for, LoaderError when a worker
    died or hung, and anything else as it was raised in `dataset[i]`. When a worker dies while the main thread
    is elsewhere, torch raises its own RuntimeError there, from a signal handler.
    """

    def __init__(
        self, make_reader: Callable[[Callable[[], bool]], Reader], slots: Iterator[Slots], plan: LoaderPlan
    ) -> None:
        self._stop = StopFlag()
        self._reader = make_reader(self._stop.is_set)
        self._slots = slots
        self._plan = plan
        self._workers: Any = None
        self._closed = False

    def start(self) -> None:
        """Starts the worker processes, if there are any, so that they read ahead; otherwise does nothing."""
        if self._plan.workers == 0 or self._workers is not None or self._closed:
            return
        with starting_workers():
            loader: DataLoader[Any] = DataLoader(
                _ReaderAsDataset(self._reader),
                batch_size=None,
                sampler=_Once(self._slots),
                collate_fn=_as_it_is,
                num_workers=self._plan.workers,
                prefetch_factor=self._plan.prefetch,
                pin_memory=self._plan.pin_memory,
                timeout=self._plan.timeout_s,
                multiprocessing_context=START_METHOD,
                worker_init_fn=worker_start(),
                # Otherwise torch draws a seed from the global generator, and starting workers would change a
                # resumed run's random numbers.
                generator=torch.Generator(),
            )
            self._workers = iter(loader)
        # Before multiprocessing's own exit handler, which waits for workers that wait for us.
        atexit.register(self.close)

    def __iter__(self) -> Iterator[MicroBatch]:
        return self

    def __next__(self) -> MicroBatch:
        if self._closed:
            raise StopIteration
        self.start()
        result = self._next_result()
        if isinstance(result, ReadFailure):
            self.close()
            result.throw()
        assert isinstance(result, MicroBatch)
        return result

    def _next_result(self) -> MicroBatch | ReadFailure:
        if self._workers is None:
            result = self._reader.read(next(self._slots))
            pins = self._plan.pin_memory and isinstance(result, MicroBatch)
            return result.pin_memory() if pins and isinstance(result, MicroBatch) else result
        try:
            return next(self._workers)  # type: ignore[no-any-return]
        except (RuntimeError, OSError, EOFError) as error:
            found = self._breakdown(error)
            if found is None:
                raise
            self.close()
            raise LoaderError(
                f"the next batch from {self._plan.workers} data workers",
                found,
                "Killed mostly means out of memory, and Bus error a full /dev/shm: try fewer --workers or a"
                " smaller --data.prefetch; --workers 0 reads in the rank's own process",
            ) from error

    def _breakdown(self, error: RuntimeError | OSError | EOFError) -> str | None:
        """How the workers broke down, or None where `error` was raised by the data set's code."""
        if isinstance(error, RuntimeError):
            return str(error).strip().splitlines()[0] if _WORKER_DIED.match(str(error)) else None
        # A batch cannot be fetched from a worker that is gone: FileNotFoundError and ConnectionError from its
        # socket, EOFError. It may be about to end.
        if not wait([process.sentinel for process in self._workers._workers], timeout=1.0):
            return None
        return f"a data worker ended before its batch was fetched ({type(error).__name__}: {error})"

    def close(self) -> None:
        """Ends the worker processes; may be called twice. Takes as long as one `dataset[i]` at most, or some
        seconds a worker where that hangs."""
        self._closed = True
        self._stop.set()
        workers, self._workers = self._workers, None
        if workers is None:
            return
        atexit.unregister(self.close)
        processes = list(workers._workers)
        # What torch runs when the iterator is collected; a traceback may keep it alive for long.
        workers._shutdown_workers()
        for process in processes:
            if process.is_alive():  # it ignores SIGTERM, see worker_start
                process.kill()
                process.join(_LAST_WAIT_S)


class _ReaderAsDataset(Dataset[Any]):
    """What torch's loader calls a data set: an "index" is the slots of a whole micro-batch."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __getitem__(self, slots: Slots) -> MicroBatch | ReadFailure:
        return self._reader.read(slots)


class _Once:
    """What torch's loader calls a sampler."""

    def __init__(self, slots: Iterator[Slots]) -> None:
        self._slots = slots

    def __iter__(self) -> Iterator[Slots]:
        return self._slots


def _as_it_is(batch: Any) -> Any:
    return batch
