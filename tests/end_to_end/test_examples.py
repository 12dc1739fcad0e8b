"""The examples, started in each way that they say they can be."""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN_LOOP = EXAMPLES / "own_loop.py"


def losses(text):
    return [float(value) for value in re.findall(r"step \d+: loss ([\d.]+)", text)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return {}


WAYS = {
    "python": ("python", OWN_LOOP),
    "torchrun": ("torchrun", "--nproc-per-node", 2, OWN_LOOP),
    "mpirun": ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", 2, "python", OWN_LOOP),
    "launch": ("drivetrain", "launch", "--nproc-per-node", 2, "--", OWN_LOOP),
    "inner loop": (
        "drivetrain", "launch", "--nproc-per-node", 2, "--", EXAMPLES / "own_inner_loop.py",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_an_own_loop_runs_the_same_however_it_is_started(shell, alone, way):
    done = shell(*WAYS[way])
    assert done.code == 0, done.err
    found = losses(done.out + done.err)
    assert len(found) == 4
    assert found[-1] < 0.1
    assert f"on {1 if way == 'python' else 2} rank(s)" in done.out + done.err
    if way == "inner loop":
        return  # micro-batches sum in another order, and 400 steps magnify it
    reference = alone.setdefault("losses", found)
    assert found == pytest.approx(reference, abs=0.02)
