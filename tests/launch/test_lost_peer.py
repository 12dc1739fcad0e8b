"""A rank is killed from outside while all ranks are in a collective: it is named, not one that lost it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest

Start = Callable[..., Any]

REDUCING = """
import os
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record  # writes down when it raised: a survivor does before the kernel reports the killed rank's end
def main():
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    os.write(1, f"pid {os.getpid()}\\n".encode())  # a whole line: a test reads it as it comes
    while True:
        dist.all_reduce(total.fill_(1))

main()
"""


CASES = [(0, signal.SIGKILL), (1, signal.SIGTERM)]


def test_the_killed_rank_is_named(start: Start) -> None:
    kill_and_check(start, CASES)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_killed_rank_is_named_each_time(start: Start, case: tuple[int, int]) -> None:
    kill_and_check(start, [case] * 3)


def kill_and_check(start: Start, cases: Sequence[tuple[int, int]]) -> None:
    """One job for each (rank, signal), all at once."""
    jobs = [start(REDUCING, "--nproc-per-node", "2", folder=f"run-{index}") for index in range(len(cases))]
    for job, (rank, signum) in zip(jobs, cases, strict=True):
        job.wait_for(1 - rank, "pid")
        os.kill(int(job.wait_for(rank, "pid").split()[1]), signum)
    for job, (rank, signum) in zip(jobs, cases, strict=True):
        ended = job.end()
        assert ended.code == 128 + signum, ended.err
        assert f"rank {rank} of 2 failed first: signal {int(signum)}" in ended.err
        assert ("out-of-memory" in ended.err) is (signum == signal.SIGKILL)
        first = job.outcome().earliest_failure
        assert first is not None
        assert (first.rank, first.signal, first.exit_code) == (rank, signum, None)
