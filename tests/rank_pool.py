"""A pool of rank processes for the whole test session: real gloo process groups without a start per test.

Each process has torch imported and waits for work. `run(world_size, function, **arguments)` makes a fresh
process group of the first `world_size` processes, as a launcher would (by environment variables), calls
`function(**arguments)` in each and returns the results in rank order. A rank that fails fails the call with
its traceback; one that hangs is killed at the time limit, and the pool starts anew for the next call.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

_PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


class RankError(AssertionError):
    """A rank failed; the text is its traceback."""


class RankPool:
    """Processes that become ranks on demand."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def run(
        self, world_size: int, function: Callable[..., Any], *, timeout_s: float = 60.0, **arguments: Any
    ) -> list[Any]:
        """Calls `function` (importable by name) on `world_size` ranks."""
        self._grow(world_size)
        port = _free_port()
        for rank, pipe in enumerate(self._pipes[:world_size]):
            place = dict(zip(_PLACE, (rank, world_size, rank, world_size, 0, "127.0.0.1", port), strict=True))
            pipe.send((place, function, arguments))
        waiting = dict(enumerate(self._pipes[:world_size]))
        results: list[Any] = [None] * world_size
        failures: list[str] = []
        while waiting:
            ready = wait(list(waiting.values()), timeout=timeout_s if not failures else 5.0)
            if not ready:
                failures.append(f"ranks {sorted(waiting)} did not finish within {timeout_s} s")
                break
            for rank in [r for r, pipe in waiting.items() if pipe in ready]:
                try:
                    ok, answer = waiting.pop(rank).recv()
                except EOFError:
                    ok, answer = False, "the process died"
                if ok:
                    results[rank] = answer
                else:
                    failures.append(f"rank {rank}: {answer}")
        if failures:
            self.close()
            raise RankError("\n".join(failures))
        return results

    def close(self) -> None:
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            pipe.close()
            process.kill()
            process.join()
        self._processes, self._pipes = [], []

    def _grow(self, world_size: int) -> None:
        while len(self._processes) < world_size:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs,), daemon=False)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)


def _serve(pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            place, function, arguments = pipe.recv()
        except EOFError:
            return
        os.environ.update({name: str(value) for name, value in place.items()})
        try:
            answer = (True, function(**arguments))
        except BaseException:  # the pool reports whatever went wrong in a rank
            answer = (False, traceback.format_exc())
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
        pipe.send(answer)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
