"""Slots of the stream in, a micro-batch out: the work of one data loading process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch

from drivetrain.data.bad_samples import (
    OnBadSample,
    ReadFailure,
    SkippedSample,
    crossing_processes,
    describe,
    is_bug,
    source_of,
)
from drivetrain.data.batch import PADDING_ID, MicroBatch
from drivetrain.data.collate import collate, zeros_like_sample
from drivetrain.data.draw import restored_globals, sample_generator, seeded_globals
from drivetrain.data.position import Slots
from drivetrain.spec.errors import BadSampleError, InputError

Draw = Callable[[np.random.Generator], Any]
Render = Callable[[Any, Any], Any]
Collate = Callable[[list[Any]], Any]

# How many further samples are tried to learn the shape of a good one, before the whole data set is called
# unreadable.
_MOST_PROBES = 64


class MapDataset(Protocol):
    """Any map-style data set. It may also have `source(index) -> str`, which names a sample in messages."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Stopped(Exception):  # noqa: N818 - not an error: the loader is being closed
    """Reading was given up, because the loader is being closed."""


class SampleReader:
    """Reads, augments and collates the samples of a micro-batch.

    Args:
        draw: `draw(generator) -> params`; with it `dataset[i]` must not be random itself.
        render: `render(sample, params) -> sample`; params is None without `draw`.
        collate_with: makes a list of samples into a batch; None stacks tensors, arrays and numbers.
        stopping: asked between two samples; true gives up.

    Without `draw`, python's, numpy's and torch's generators are seeded for each sample, so that random
    transforms inside `dataset[i]` give the same result on any rank and worker.
    """

    def __init__(
        self,
        dataset: MapDataset,
        *,
        seed: int,
        draw: Draw | None = None,
        render: Render | None = None,
        on_bad_sample: OnBadSample = "fail",
        collate_with: Collate | None = None,
        stopping: Callable[[], bool] | None = None,
    ) -> None:
        self._dataset = dataset
        self._seed = seed
        self._draw = draw
        self._render = render
        self._skips = on_bad_sample == "skip"
        self._collate = collate_with
        self._stopping = stopping
        self._good: tuple[Any, Any] | None = None  # the last good sample and its parameters

    def read(self, slots: Slots) -> MicroBatch | ReadFailure:
        """The samples at `slots`; for no slots, one padding slot with weight 0.

        Returns:
            A ReadFailure, where the samples are at fault. Faults of code are raised; among them sys.exit,
            which would end the run as if it were done.
        """
        try:
            with self._globals_kept():
                return self._read(slots) if len(slots) else self._padding()
        except _BadSample as bad:
            # A BadSampleError is raised anew; what it came from is the cause.
            cause = bad.error.__cause__ if isinstance(bad.error, BadSampleError) else bad.error
            assert cause is None or isinstance(cause, Exception)
            return ReadFailure(sample=bad.sample, cause=crossing_processes(cause) if _in_worker() else cause)
        except InputError as error:
            return ReadFailure(error=error)
        except SystemExit as error:
            where = ", ".join(getattr(error, "__notes__", ()))
            raise RuntimeError(f"sys.exit({error.code!r}) was called {where}".strip()) from error

    def _read(self, slots: Slots) -> MicroBatch:
        samples: list[Any] = []
        params: list[Any] = []
        bad: dict[int, SkippedSample] = {}
        for place, (epoch, index) in enumerate(zip(slots.epoch.tolist(), slots.index.tolist(), strict=True)):
            try:
                sample, drawn = self._one(epoch, index)
                self._good = sample, drawn
            except _BadSample as error:
                if not self._skips:
                    raise
                sample, drawn = None, None
                bad[place] = error.sample
            samples.append(sample)
            params.append(drawn)
        if bad:
            self._fill(samples, params, bad, first=int(slots.index[0]))
        weight = np.ones(len(slots), dtype=np.float32)
        weight[list(bad)] = 0.0
        return self._batch(samples, params, weight, slots.index, slots.position, tuple(bad.values()))

    def _one(self, epoch: int, index: int) -> tuple[Any, Any]:
        """The finished sample and its parameters."""
        if self._stopping is not None and self._stopping():
            raise Stopped
        # What `draw` raises is never the sample's fault: it does not know the sample.
        params = self._draw(sample_generator(self._seed, epoch, index)) if self._draw else None
        seeded = nullcontext() if self._draw else seeded_globals(self._seed, epoch, index, restore=False)
        try:
            with seeded:
                sample = self._dataset[index]
                return (self._render(sample, params) if self._render else sample), params
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) or is_bug(error):
                error.add_note(f"while reading {source_of(self._dataset, index)}")
                raise
            raise _BadSample(describe(self._dataset, index, error), error) from error

    def _fill(self, samples: list[Any], params: list[Any], bad: dict[int, SkippedSample], first: int) -> None:
        """Puts zeros of a good sample's shape into the places of the bad ones."""
        good = next((place for place in range(len(samples)) if place not in bad), None)
        sample, drawn = (samples[good], params[good]) if good is not None else self._known_good(first, bad)
        for place in bad:
            samples[place], params[place] = zeros_like_sample(sample), zeros_like_sample(drawn)

    def _known_good(self, first: int, bad: dict[int, SkippedSample] | None = None) -> tuple[Any, Any]:
        """A good sample, read now if none was read before: only its structure is used.

        Raises:
            InputError: none was found near `first`.
        """
        if self._good is not None:
            return self._good
        last = next(reversed(bad.values()), None) if bad else None
        num_probes = min(_MOST_PROBES, len(self._dataset))
        for probe in range(num_probes):
            try:
                self._good = self._one(0, (first + probe) % len(self._dataset))
            except _BadSample as error:
                if not self._skips:
                    raise
                last = error.sample
            else:
                return self._good
        assert last is not None
        raise InputError(
            f"to skip bad samples of {type(self._dataset).__name__}",
            f"none of {num_probes} samples could be read; the last was {last.source}: {last.reason}",
            "check the data set; --data.on-bad-sample fail stops at the first one",
        )

    def _padding(self) -> MicroBatch:
        sample, params = self._known_good(0)
        nowhere = np.full(1, PADDING_ID, dtype=np.int64)
        weight = np.zeros(1, dtype=np.float32)
        return self._batch(
            [zeros_like_sample(sample)], [zeros_like_sample(params)], weight, nowhere, nowhere, ()
        )

    def _batch(
        self,
        samples: list[Any],
        params: list[Any],
        weight: np.ndarray[Any, np.dtype[np.float32]],
        index: np.ndarray[Any, np.dtype[np.int64]],
        position: np.ndarray[Any, np.dtype[np.int64]],
        skipped: tuple[SkippedSample, ...],
    ) -> MicroBatch:
        ids = index.tolist()
        return MicroBatch(
            data=self._collate(samples) if self._collate else collate(samples, ids, self._dataset),
            weight=torch.from_numpy(weight),
            num_valid=float(weight.sum()),
            ids=torch.from_numpy(index.copy()),
            positions=torch.from_numpy(position.copy()),
            skipped=skipped,
            params=None if self._draw is None else collate(params, ids, self._draw),
        )

    @contextmanager
    def _globals_kept(self) -> Iterator[None]:
        """Leaves the training process's own random numbers as they were; a worker has none to keep."""
        with nullcontext() if _in_worker() or self._draw is not None else restored_globals():
            yield


def _in_worker() -> bool:
    return torch.utils.data.get_worker_info() is not None


class _BadSample(Exception):  # noqa: N818 - carries one within this module
    def __init__(self, sample: SkippedSample, error: Exception) -> None:
        super().__init__(sample)
        self.sample = sample
        self.error = error
