"""Taking a lease: in order, several GPUs at once or none, by locks that the kernel releases.

Whoever chooses holds the queue's lock for that moment, so that nobody sees half a choice. A place in the
queue is a locked byte on the file of every GPU that the waiter could take: the lowest comes first on that
GPU, those who may use other GPUs need not wait for it, and one that dies gives its place up with its locks.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from drivetrain.hardware.leases.byte_locks import locked_elsewhere, try_lock, unlock
from drivetrain.hardware.leases.error import LeaseError
from drivetrain.hardware.leases.folder import QUEUE, gpu_file, is_still_at, open_shared
from drivetrain.hardware.leases.holder import Holder, read_holder, write_holder
from drivetrain.hardware.leases.inherited import lease_variable
from drivetrain.hardware.leases.pool import LeasableGpu, Pool
from drivetrain.spec.unknown import Unknown

LEASE_BYTE = 0
FIRST_PLACE = 1 << 20
LAST_PLACE = 1 << 40
_CHOOSING_WAIT_S = 30.0
_CHOOSING_LOOK_S = 0.005
_LOOK_S = 0.25

Choose = Callable[[Sequence[LeasableGpu], int], Sequence[LeasableGpu]]
"""Which `n` of the free GPUs (in NVML's order, at least `n`) to take; the order given is the ranks' order."""

UsedOutside = Callable[[LeasableGpu], str | None]
"""Why a GPU that nobody has leased is not free (`pool.used_outside`); None where it is."""


def lowest_indices(free: Sequence[LeasableGpu], n: int) -> Sequence[LeasableGpu]:
    """The choice where nothing is known of how the GPUs are wired."""
    return sorted(free, key=lambda gpu: gpu.index)[:n]


@dataclass(frozen=True, kw_only=True)
class Lease:
    """GPUs that are this process's, and those of the processes that inherit `files`, until the last ends."""

    name: str
    gpus: tuple[LeasableGpu, ...]
    files: tuple[int, ...]
    paths: tuple[Path, ...]

    def environment(self) -> dict[str, str]:
        """What makes a CUDA program see these GPUs and no others, and lets its children find the lease."""
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in self.gpus)}
        return visible | lease_variable(self.name, self.files)

    def describe(self) -> str:
        return ", ".join(f"GPU {gpu.index} ({gpu.uuid})" for gpu in self.gpus)

    def close(self) -> None:
        """Gives up this process's part. The lease ends when those who inherited it have ended too."""
        for file in self.files:
            os.close(file)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """`holder` is written beside the lock, with the time at which it is had and `for_s` after it."""

    num_gpus: int
    holder: Holder
    for_s: float | None = None


def take(
    wish: Wish,
    pool: Pool,
    folder: Path,
    *,
    used_outside: UsedOutside,
    choose: Choose = lowest_indices,
    is_waiting: bool = False,
    how_to_wait: str = "--wait",
    note: Callable[[str], None] = lambda _: None,
) -> Lease:
    """Leases `wish.num_gpus` of the pool (which has that many), or says who has them.

    Waits for its turn without a limit where `is_waiting`: it is for the user to interrupt. `note` then gets a
    line when the wait begins and when what it waits for changes.

    Raises:
        LeaseError: too few are free, and `is_waiting` is False; or the locks cannot be used.
    """
    said = None
    with _Files(pool.gpus, folder) as files:
        while True:
            with _choosing(folder):
                files.renew()
                standings = [files.standing(gpu, used_outside) for gpu in pool.gpus]
                free = [standing.gpu for standing in standings if standing.why is None]
                if len(free) >= wish.num_gpus:
                    return files.lock(choose(free, wish.num_gpus), wish)
                if not is_waiting:
                    raise _not_free(wish.num_gpus, free, standings, pool, how_to_wait)
                files.take_place()
            if (now := _waiting_for(wish.num_gpus, free, standings)) != said:
                said = now
                note(now)
            time.sleep(_LOOK_S)


@dataclass(frozen=True, kw_only=True)
class _Standing:
    """One GPU as this request finds it; `why` it cannot have it, None where it can."""

    gpu: LeasableGpu
    why: str | None


class _Files:
    """The open files of a pool's GPUs, by UUID, with this request's place in the queue on each."""

    def __init__(self, gpus: Sequence[LeasableGpu], folder: Path) -> None:
        self._paths = {gpu.uuid: gpu_file(folder, gpu.uuid) for gpu in gpus}
        self._files: dict[str, int] = {}
        self._place: int | None = None

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            os.close(file)

    def renew(self) -> None:
        """Opens what is not open, or was removed since; then the place on it is taken anew."""
        for uuid, path in self._paths.items():
            file = self._files.get(uuid)
            if file is not None and is_still_at(path, file):
                continue
            if file is not None:
                os.close(file)
            self._files[uuid] = open_shared(path)
            if self._place is not None:
                try_lock(self._files[uuid], self._place)

    def take_place(self) -> None:
        """Behind everybody who waits for one of these GPUs. Only while choosing; once."""
        if self._place is not None:
            return
        before = [
            place
            for file in self._files.values()
            for place in locked_elsewhere(file, FIRST_PLACE, LAST_PLACE)[-1:]
        ]
        self._place = max(before, default=FIRST_PLACE - 1) + 1
        for file in self._files.values():
            try_lock(file, self._place)

    def standing(self, gpu: LeasableGpu, used_outside: UsedOutside) -> _Standing:
        return _Standing(gpu=gpu, why=self._why_not(gpu, used_outside))

    def _why_not(self, gpu: LeasableGpu, used_outside: UsedOutside) -> str | None:
        file = self._files[gpu.uuid]
        if locked_elsewhere(file, LEASE_BYTE, LEASE_BYTE):
            holder = read_holder(file)
            return (
                f"leased, by whom is {holder}"
                if isinstance(holder, Unknown)
                else f"leased by {holder.describe()}"
            )
        last = LAST_PLACE if self._place is None else self._place - 1
        if before := locked_elsewhere(file, FIRST_PLACE, last):
            return f"{len(before)} waiting for it" + ("" if self._place is None else " before you")
        return used_outside(gpu)

    def lock(self, chosen: Sequence[LeasableGpu], wish: Wish) -> Lease:
        """Locks the chosen and lets the others go. Only while choosing, so that none is taken meanwhile."""
        now_s = time.time()
        until_s = None if wish.for_s is None else now_s + wish.for_s
        holder = _at(wish.holder, now_s, until_s)
        for gpu in chosen:
            if not try_lock(self._files[gpu.uuid], LEASE_BYTE):
                # Only a program that does not keep to the queue's lock can have come in between.
                raise LeaseError(f"GPU {gpu.index}", "it was taken while it was being chosen", "try again")
        if self._place is not None:
            for file in self._files.values():
                unlock(file, self._place)
        files = tuple(self._files.pop(gpu.uuid) for gpu in chosen)
        for file in files:
            write_holder(file, holder)
        return Lease(
            name=secrets.token_hex(8),
            gpus=tuple(chosen),
            files=files,
            paths=tuple(self._paths[gpu.uuid] for gpu in chosen),
        )


def _at(holder: Holder, since_s: float, until_s: float | None) -> Holder:
    return Holder(
        user=holder.user,
        pid=holder.pid,
        command=holder.command,
        since_s=since_s,
        until_s=until_s,
        job=holder.job,
    )


@contextmanager
def _choosing(folder: Path) -> Iterator[None]:
    """Holds the queue's lock; closing the file gives it up."""
    path = folder / QUEUE
    deadline = time.monotonic() + _CHOOSING_WAIT_S
    while True:
        file = open_shared(path)
        try:
            while not try_lock(file, LEASE_BYTE):
                if time.monotonic() > deadline:
                    raise LeaseError(
                        f"the lock {path}",
                        f"somebody has been choosing for {_CHOOSING_WAIT_S:.0f} s: a stopped process, or a"
                        " driver that does not answer",
                        f"see who has it open: fuser -v {path}",
                    )
                time.sleep(_CHOOSING_LOOK_S)
            if is_still_at(path, file):
                yield
                return
        finally:
            os.close(file)


def _not_free(
    wanted: int, free: Sequence[LeasableGpu], standings: Sequence[_Standing], pool: Pool, how: str
) -> LeaseError:
    lines = [f"GPU {standing.gpu.index}: {standing.why}" for standing in standings if standing.why]
    found = f"{len(free)} of {len(pool.gpus)} are free ({pool.source})"
    return LeaseError(
        f"a lease of {wanted} GPU{'s' if wanted > 1 else ''}",
        "\n    ".join((found, *lines, *pool.left_out)),
        f"wait in line ({how}), or ask for fewer",
    )


def _waiting_for(wanted: int, free: Sequence[LeasableGpu], standings: Sequence[_Standing]) -> str:
    taken = "; ".join(
        f"GPU {standing.gpu.index} {_short(standing.why)}" for standing in standings if standing.why
    )
    return f"waiting for {wanted} GPU{'s' if wanted > 1 else ''}, {len(free)} free: {taken}"


def _short(why: str) -> str:
    """Without the times, which would make every look a change."""
    return why.split(", since ")[0]
