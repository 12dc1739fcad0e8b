"""Two launchers on this host as two machines: they end together, and node 0 names who failed first."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

Start = Callable[..., Any]

# Rank 0 loses its peer, and says so, a moment before that peer's end is known.
FAILING = """
import json, os, time
from pathlib import Path
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
flag = Path(os.environ["DRIVETRAIN_RUN_DIR"], f"flag-{attempt}")
print("attempt", attempt, "of rank", rank, "on node", os.environ["GROUP_RANK"])
if rank == 3 and attempt < FAILURES:
    time.sleep(1.0)
    flag.touch()
    time.sleep(0.1)
    raise ValueError("on the last rank")
if rank == 0 and SLOW and attempt < FAILURES:
    while not flag.exists():
        time.sleep(0.01)
    said = {"message": "RuntimeError: Connection reset by peer", "extraInfo": {"timestamp": time.time()}}
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": said}))
if SLOW and attempt < FAILURES:
    time.sleep(300)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def machine_flags(kind: str, port: int, node: int) -> tuple[str, ...]:
    if kind == "static":
        where: tuple[str, ...] = ("--master-addr=127.0.0.1", f"--master-port={port}", f"--node-rank={node}")
    else:
        where = (f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job", "--local-addr=127.0.0.1")
    return ("-j", "2x2", *where)


def script(*, failures: int, slow: bool) -> str:
    return FAILING.replace("FAILURES", str(failures)).replace("SLOW", str(slow))


@pytest.mark.parametrize("kind", ["static", "c10d"])
def test_node_0_names_the_rank_that_failed_on_node_1(start: Start, kind: str) -> None:
    port = free_port()
    code = script(failures=1, slow=True)
    machines = [start(code, *machine_flags(kind, port, node)) for node in (0, 1)]
    ends = [machine.end() for machine in machines]
    for ended in ends:
        assert ended.code == 1, ended.err
        assert "ValueError: on the last rank\n\nrank 3 of 4 failed first: exit code 1\n" in ended.err
        assert "node rank 1, local rank 1" in ended.err
    assert sorted("attempt 0 of rank 0" in ended.out for ended in ends) == [
        False,
        True,
    ]  # node 0's screen alone
    outcomes = [machines[0].outcome(), machines[0].outcome("outcome-node-00001.json")]
    for node, outcome in enumerate(outcomes):
        first = outcome.earliest_failure
        assert first is not None
        assert (first.rank, first.node_rank, first.host) == (3, 1, socket.gethostname())
        assert (outcome.exit_code, outcome.world_size) == (1, 4)
        assert [item.rank for item in outcome.ranks] == [2 * node, 2 * node + 1]
        assert first.ended_wall_s is not None
        assert outcome.ended_wall_s - first.ended_wall_s < 10.0
    lost = outcomes[0].ranks[0]
    assert lost.message == "RuntimeError: Connection reset by peer"
    assert lost.ended_wall_s is not None
    assert lost.ended_wall_s < (first.ended_wall_s or 0.0)


def test_a_machine_whose_ranks_ended_well_hears_of_a_failure_elsewhere(start: Start) -> None:
    port = free_port()
    machines = [
        start(script(failures=1, slow=False), *machine_flags("static", port, node)) for node in (0, 1)
    ]
    for machine in machines:
        ended = machine.end()
        assert ended.code == 1, ended.err
        assert "rank 3 of 4 failed first" in ended.err


@pytest.mark.parametrize("kind", ["static", "c10d"])
def test_a_failure_on_one_machine_restarts_all(start: Start, kind: str) -> None:
    port = free_port()
    flags = ("--max-restarts", "1")
    code = script(failures=1, slow=kind == "static")
    machines = [start(code, *machine_flags(kind, port, node), *flags) for node in (0, 1)]
    for machine in machines:
        ended = machine.end()
        assert ended.code == 0, ended.err
    for rank in range(4):
        first, _, second = machines[0].log(rank).partition("attempt 2 of 2")
        assert f"attempt 0 of rank {rank}" in first
        assert f"attempt 1 of rank {rank}" in second
    for name in ("outcome.json", "outcome-node-00001.json"):
        assert machines[0].outcome(name).restarts == 1


def test_an_interrupted_machine_ends_the_other(start: Start) -> None:
    port = free_port()
    code = "import time\nprint('ready')\ntime.sleep(300)"
    machines = [start(code, *machine_flags("static", port, node)) for node in (0, 1)]
    for rank in range(4):
        machines[0].wait_for(rank, "ready")
    machines[1].send(15)
    assert machines[1].end().code == 143
    ended = machines[0].end()
    assert ended.code == 143
    assert "rank 2 of 4 failed first: signal 15 (SIGTERM)" in ended.err
    assert "was interrupted by SIGTERM" in ended.err


def test_a_machine_ends_its_ranks_when_the_stores_host_is_killed(start: Start) -> None:
    port = free_port()
    code = "import time\nprint('ready')\ntime.sleep(300)"
    machines = [start(code, *machine_flags("static", port, node)) for node in (0, 1)]
    machines[0].wait_for(2, "ready")
    machines[0].send(9)
    ended = machines[1].end(15.0)
    assert (ended.code, "failed first" in ended.err) == (1, False)
    assert "lost touch with the other machines" in ended.err
    assert [item.signal for item in machines[0].outcome("outcome-node-00001.json").ranks] == [15, 15]


def test_a_machine_that_waits_for_others_can_be_interrupted(start: Start) -> None:
    launcher = start("print('never')", *machine_flags("static", free_port(), 1))
    time.sleep(3.0)  # by now it has imported torch and sits in a blocking connect
    launcher.send(15)
    sent = time.monotonic()
    assert launcher.end(20.0).code == 143
    assert time.monotonic() - sent < 8.0  # not the 600 s of the connect, nor the ranks' grace and more
    assert launcher.outcome("outcome-node-00001.json").ranks == ()
