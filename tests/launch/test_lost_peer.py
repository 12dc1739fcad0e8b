"""A rank is killed from outside while all ranks are in a collective: it is named, not one that lost it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
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
    print("pid", os.getpid(), flush=True)
    while True:
        dist.all_reduce(total.fill_(1))

main()
"""


@pytest.mark.parametrize(("rank", "signum"), [(0, signal.SIGKILL), (1, signal.SIGTERM)])
def test_the_killed_rank_is_named(start: Start, rank: int, signum: int) -> None:
    launchers = [start(REDUCING, "--nproc-per-node", "2", folder=f"run-{index}") for index in range(3)]
    for launcher in launchers:
        launcher.wait_for(1 - rank, "pid")
        os.kill(int(launcher.wait_for(rank, "pid").split()[1]), signum)
    for launcher in launchers:
        ended = launcher.end()
        assert ended.code == 128 + signum, ended.err
        assert f"rank {rank} of 2 failed first: signal {int(signum)}" in ended.err
        first = launcher.outcome().earliest_failure
        assert first is not None
        assert (first.rank, first.signal) == (rank, signum)


ON_TWO_MACHINES = """
import os, signal, sys, time
from pathlib import Path
flag = Path(sys.argv[1])
if os.environ["RANK"] == "1":
    time.sleep(1.0)
    flag.touch()
    raise ConnectionResetError(104, "Connection reset by peer")
while not flag.exists():
    time.sleep(0.002)
time.sleep(0.05)  # as long as the kernel takes
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_killed_rank_is_named_on_every_machine(start: Start, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ("-j", "2x1", "--master-addr=127.0.0.1", f"--master-port={port}")
    flag = str(tmp_path / "flag")
    machines = [start(ON_TWO_MACHINES, *flags, f"--node-rank={node}", args=(flag,)) for node in range(2)]
    for machine in machines:
        ended = machine.end()
        assert ended.code == 137, ended.err
        assert "rank 0 of 2 failed first: signal 9 (SIGKILL)" in ended.err
    (lost,) = machines[0].outcome("outcome-node-00001.json").ranks
    assert lost.message == "ConnectionResetError: [Errno 104] Connection reset by peer"
