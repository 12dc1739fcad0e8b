"""How many workers, and why."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from typing import Any

import pytest

from drivetrain.data.workers import LoaderPlan, plan_loader, starting_workers
from drivetrain.spec.errors import InputError


def plan(**given: Any) -> LoaderPlan:
    usual = {"num_cpus": 32, "local_world_size": 4, "cost": "decode", "device_type": "cuda"}
    return plan_loader(**(usual | given))


@pytest.mark.parametrize(
    "given, workers",
    [
        ({}, 7),
        ({"num_cpus": 2, "local_world_size": 1}, 1),
        ({"num_cpus": 2, "local_world_size": 8}, 1),
        ({"num_cpus": 256, "local_world_size": 8}, 16),
        ({"cost": "memory"}, 0),
        ({"device_type": "cpu", "num_cpus": 2, "local_world_size": 2}, 0),
        ({"device_type": "cpu", "num_cpus": 16, "local_world_size": 1}, 4),
        ({"workers": 3}, 3),
        ({"workers": 0}, 0),
    ],
)
def test_workers_follow_from_the_cpus_each_rank_has(given: dict[str, Any], workers: int) -> None:
    assert plan(**given).workers == workers


def test_the_reason_stands_beside_the_usual_rule() -> None:
    reason = plan().reason
    assert "32 CPUs for 4 ranks" in reason
    assert "2 to 4 a GPU would be 8 to 16" in reason


def test_more_workers_than_cpus_are_taken_but_said() -> None:
    assert "more than this machine's 4 CPUs" in plan(workers=4, num_cpus=4).reason


def test_pinning_is_for_gpus() -> None:
    assert plan().pin_memory
    assert not plan(device_type="cpu").pin_memory
    assert not plan(pin_memory=False).pin_memory
    forced = plan(device_type="cpu", pin_memory=True)
    assert not forced.pin_memory
    assert "stays off" in forced.reason


@pytest.mark.parametrize("wrong", [{"workers": -1}, {"prefetch": 0}, {"workers": "many"}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="at least"):
        plan(**wrong)


def test_forking_beside_threads_is_quiet_inside_and_heard_outside() -> None:
    message = "This process (pid=1) is multi-threaded, use of fork() may lead to deadlocks in the child."
    with starting_workers():
        warnings.warn(message, DeprecationWarning, stacklevel=1)
    with pytest.raises(DeprecationWarning):
        warnings.warn(message, DeprecationWarning, stacklevel=1)


def test_a_signal_while_workers_start_reaches_the_rank_afterwards() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        with starting_workers():
            os.kill(os.getpid(), signal.SIGUSR1)
            # Another thread may take it at once; the one that forks, whose mask workers inherit, not.
            assert signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        deadline = time.monotonic() + 10
        while not seen and time.monotonic() < deadline:
            time.sleep(0.01)
        assert seen == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_forking_beside_a_thread_does_not_warn() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, args=(30,))
    thread.start()
    try:
        with starting_workers():
            child = os.fork()  # warns from Python 3.12 on, and warnings are errors here
            if child == 0:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        release.set()
        thread.join(30)
