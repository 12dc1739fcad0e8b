"""Time of `drivetrain launch` beside torchrun's, in alternating pairs on the same machine.

    python benchmarks/launch/versus_torchrun.py [--pairs 7] [--nproc-per-node 2] [--script import-torch]

Each run is a whole process from its start to its end. The script is trivial (`print`), or imports torch as a
real one would, so that what the launcher does meanwhile counts. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

SCRIPTS = {
    "print": "print('done')\n",
    "import-torch": "import torch\nprint('done')\n",
}
_LIMIT_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--nproc-per-node", type=int, default=2)
    parser.add_argument("--script", choices=sorted(SCRIPTS), action="append")
    arguments = parser.parse_args()
    print_machine(arguments.nproc_per_node)
    print("| script | launcher | median s | min | max | s over torchrun (median of pairs) | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name in arguments.script or list(SCRIPTS):
        with tempfile.TemporaryDirectory() as folder:
            compare(name, Path(folder), arguments.pairs, arguments.nproc_per_node)


def compare(name: str, folder: Path, num_pairs: int, nproc: int) -> None:
    script = folder / "script.py"
    script.write_text(SCRIPTS[name])
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"]
    runs = 0

    def with_torchrun() -> float:
        return timed([*torchrun, str(script)])

    def with_drivetrain() -> float:
        nonlocal runs
        runs += 1
        output = ["--output", str(folder / f"run-{runs}")]
        return timed(
            [
                sys.executable,
                "-m",
                "drivetrain",
                "launch",
                f"--nproc-per-node={nproc}",
                *output,
                "--",
                str(script),
            ]
        )

    theirs, ours = alternate(with_torchrun, with_drivetrain, num_pairs)
    difference = statistics.median(own - their for own, their in zip(ours, theirs, strict=True))
    ratio = statistics.median(own / their for own, their in zip(ours, theirs, strict=True))
    for launcher, times in (("torchrun", theirs), ("drivetrain launch", ours)):
        last = f"{difference:+.3f} | {ratio:.3f}" if times is ours else "|"
        spread = f"{statistics.median(times):.3f} | {min(times):.3f} | {max(times):.3f}"
        print(f"| {name} | {launcher} | {spread} | {last} |", flush=True)


def alternate(
    first: Callable[[], float], second: Callable[[], float], num_pairs: int
) -> tuple[list[float], list[float]]:
    """`num_pairs` pairs after one unmeasured run of each; who goes first alternates from pair to pair."""
    first()
    second()
    times: tuple[list[float], list[float]] = ([], [])
    for pair in range(num_pairs):
        order = [(first, times[0]), (second, times[1])]
        for run, kept in order if pair % 2 == 0 else reversed(order):
            kept.append(run())
    return times


def timed(command: Sequence[str]) -> float:
    """Seconds from the start to the end of `command`, which must succeed and print `done`."""
    start = time.perf_counter()
    result = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    elapsed = time.perf_counter() - start
    if result.returncode != 0 or "done" not in result.stdout:
        sys.exit(f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
    return elapsed


def print_machine(nproc: int) -> None:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    load = os.getloadavg()[0]
    print(f"{len(os.sched_getaffinity(0))} CPUs ({model}), load {load:.1f} before; {nproc} ranks;")
    print(f"Python {platform.python_version()}, torch {version('torch')}, Linux {platform.release()}.\n")


if __name__ == "__main__":
    main()
