"""Forked processes that race for leases, as two users where it may: run as a program, by tests of leases.

    python lease_race.py LOCKS MARKS PROCESSES ROUNDS

Whoever holds a GPU makes a mark that nobody else may have made. Prints how many leases there were, or dies.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from drivetrain.hardware.leases import take
from drivetrain.hardware.leases.holder import Holder
from drivetrain.hardware.leases.pool import LeasableGpu, Pool

GPUS = tuple(LeasableGpu(index=index, uuid=f"GPU-{index}", name="") for index in range(3))
UIDS = (65533, 65534)


def main() -> None:
    locks, marks = map(Path, sys.argv[1:3])
    num_processes, rounds = map(int, sys.argv[3:5])
    children = []
    for number in range(num_processes):
        child = os.fork()
        if child == 0:
            race(locks, marks, rounds, number)
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    print(num_processes * rounds)


def race(locks: Path, marks: Path, rounds: int, number: int) -> None:
    if os.getuid() == 0:
        os.setuid(UIDS[number % 2])
    take._LOOK_S = 0.001
    draw = random.Random(number)
    for _ in range(rounds):
        num_gpus = draw.choice((1, 1, 2, 3))
        holder = Holder(user="", pid=os.getpid(), command="", since_s=0.0)
        # What one waits for with an own pool of two, another may have from the whole.
        gpus = GPUS if num_gpus == 3 else tuple(draw.sample(GPUS, 2 if draw.random() < 0.3 else 3))
        lease = take.take(
            take.Wish(num_gpus=num_gpus, holder=holder),
            Pool(gpus=gpus, left_out=(), source=""),
            locks,
            used_outside=lambda _: None,
            is_waiting=True,
        )
        for gpu in lease.gpus:
            (marks / gpu.uuid).mkdir()  # FileExistsError: two share it
        for gpu in lease.gpus:
            (marks / gpu.uuid).rmdir()
        lease.close()


if __name__ == "__main__":
    main()
