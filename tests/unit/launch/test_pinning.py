"""What a rank's process inherits from the thread that starts it, and that the thread gets its own back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.launch.pinning import nodes_to_prefer, pinned, prefer_node
from drivetrain.launch.ranks import RankProcesses, RankStart
from drivetrain.spec.job import Pinning

ALLOWED = sorted(os.sched_getaffinity(0))
MAPS = Path("/proc/self/numa_maps")
SHOW = f"""
import os
print(sorted(os.sched_getaffinity(0)))
print(open("{MAPS}").readline().split()[1] if os.path.exists("{MAPS}") else "no NUMA")
"""


def started():
    done = subprocess.run(
        [sys.executable, "-S", "-c", SHOW], capture_output=True, text=True, timeout=30, check=True
    )
    cpus, policy = done.stdout.splitlines()
    return cpus, policy


def test_a_process_runs_on_its_cpus_and_the_thread_is_as_before():
    with pinned(Pinning(cpus=(ALLOWED[-1],))):
        assert started()[0] == f"[{ALLOWED[-1]}]"
    assert started()[0] == str(ALLOWED)


@pytest.mark.skipif(not MAPS.exists(), reason="a kernel without NUMA")
@pytest.mark.skipif(not nodes_to_prefer([0]), reason="this container forbids memory policies")
def test_memory_comes_first_from_the_node_and_afterwards_from_anywhere():
    with pinned(Pinning(numa_node=0)):
        assert started()[1] == "prefer:0"
        assert nodes_to_prefer([0]) == frozenset()  # a policy that is set already is not ours to change
    assert started()[1] == "default"


def test_what_the_kernel_refuses_is_no_error():
    with pinned(Pinning(cpus=(4095,), numa_node=1000)):
        assert started() == (str(ALLOWED), started()[1])
    assert not prefer_node(1000)
    assert not prefer_node(10**9)


def test_each_rank_gets_its_own(tmp_path):
    ranks = RankProcesses(grace_s=5.0)
    starts = [
        RankStart(
            rank=rank,
            local_rank=rank,
            command=(sys.executable, "-S", "-c", SHOW),
            environment={},
            log=tmp_path / f"rank-{rank}.log",
            error_file=tmp_path / f"error-{rank}.json",
            pinning=pinning,
        )
        for rank, pinning in enumerate([Pinning(cpus=(ALLOWED[0],)), None])
    ]
    try:
        ranks.start(starts, attempt=0, attempts=1)
        assert ranks.wait(30.0)
    finally:
        ranks.close()
    shown = [start.log.read_text().splitlines()[0] for start in starts]
    assert shown == [f"[{ALLOWED[0]}]", str(ALLOWED)]
