"""Notices between machines, over a real store in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from drivetrain.launch.agent_bulletin import Bulletin
from drivetrain.launch.ports import listen
from drivetrain.spec.outcome import RankOutcome

torch_distributed = pytest.importorskip("torch.distributed")

FAILURE = RankOutcome(
    rank=3, local_rank=1, node_rank=1, host="b", pid=9, exit_code=1, message="ValueError: no"
)


class Machines:
    """A store and two machines' bulletins on it."""

    def __init__(self) -> None:
        listener = listen(0, loopback_only=True)
        self.port = listener.getsockname()[1]
        self.store = torch_distributed.TCPStore(
            "127.0.0.1",
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=10),
            master_listen_fd=listener.detach(),
        )
        self.both = [Bulletin("127.0.0.1", self.port, run_id="job", lost_after_s=3.0) for _ in range(2)]
        self.open("first")

    def open(self, epoch: str) -> None:
        for node, bulletin in enumerate(self.both):
            bulletin.open_epoch(epoch, node_rank=node, num_nodes=2)


@pytest.fixture
def machines() -> Iterator[Machines]:
    both = Machines()
    yield both
    for bulletin in both.both:
        bulletin.close()


def wait_until(condition: Callable[[], bool], limit_s: float = 5.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_a_failure_is_heard_of_with_its_details_and_forgotten_in_the_next_attempt(machines: Machines) -> None:
    here, there = machines.both
    assert here.ends(timeout_s=5.0) == {}
    there.announce_failure()
    wait_until(lambda: here.peer_failed)
    there.publish_end(FAILURE, timeout_s=5.0)
    here.publish_end(None, timeout_s=5.0)
    ends = here.collect_ends(deadline_s=time.monotonic() + 5.0)
    assert ends == {0: None, 1: FAILURE}
    machines.open("second")
    assert not here.peer_failed
    assert here.ends(timeout_s=5.0) == {}
    time.sleep(0.5)  # longer than one look
    assert not here.peer_failed


def test_the_stores_host_leaves_last(machines: Machines) -> None:
    here, there = machines.both
    start = time.monotonic()
    here.leave(timeout_s=0.5)  # this process hosts the store, and the other has not left
    assert time.monotonic() - start >= 0.5
    there.leave(timeout_s=5.0)
    assert time.monotonic() - start < 3.0


def test_a_machine_without_a_sign_of_life_is_lost(machines: Machines) -> None:
    here, there = machines.both
    time.sleep(3.5)
    assert here.lost_nodes() == ()
    there.close()
    wait_until(lambda: here.lost_nodes() == (1,), limit_s=9.0)


def test_without_a_store_it_answers_nothing_and_raises_nothing(machines: Machines) -> None:
    here, _ = machines.both
    assert here.ends(timeout_s=5.0) == {}
    del machines.store
    start = time.monotonic()
    here.publish_end(None, timeout_s=2.0)
    wait_until(lambda: here.is_gone)
    assert here.ends(timeout_s=2.0) == {}
    assert here.collect_ends(deadline_s=time.monotonic() + 2.0) == {}
    here.leave(timeout_s=1.0)
    assert time.monotonic() - start < 5.0
