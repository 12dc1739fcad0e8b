"""The rules against small logs: each with its cause alone, and in the noise of a normal run."""

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from drivetrain.diagnose.logs import diagnose_text
from drivetrain.diagnose.rule_files import load_rules
from drivetrain.diagnose.rules import NO_PROBLEM_FOUND

FOLDER = Path(__file__).parents[2] / "captures" / "diagnose"
NUM_NOISE_LINES = 100_000


def captures() -> Iterator[Any]:
    for file in sorted(FOLDER.glob("*.yaml")):
        for capture in yaml.load(file.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            yield pytest.param(capture, id=f"{file.stem}: {capture['name']}")


CAPTURES = list(captures())


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_capture_shows_its_cause_and_rank(capture: dict[str, Any]) -> None:
    verdict = diagnose_text(capture["log"])
    assert verdict.cause in {capture["cause"], *capture.get("also", [])}, verdict
    if "rank" in capture:
        assert verdict.culprit_rank == capture["rank"]
    if "confidence" in capture:
        assert verdict.confidence == capture["confidence"]


def test_every_cause_has_two_captures() -> None:
    counts = Counter(param.values[0]["cause"] for param in CAPTURES)
    assert {name for name in load_rules().causes if counts[name] < 2} == set()


NOISE = (
    "n{n}:29{n}:5921 [{d}] NCCL INFO Channel {d:02d}/0 : {n}[{d}] -> {d}[{d}] via P2P/CUMEM/read",
    "n{n}:29{n}:5921 [{d}] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB bond0:10.2.0.3<0>",
    "n{n}:29{n}:5921 [{d}] NCCL INFO comm 0x55d rank {n} nranks 64 cudaDev {d} busId 1b000 - Init COMPLETE",
    "[rank{n}]: step {s} loss 2.3{d} grad_norm 0.9{d} lr 3e-04 tok/s 41{n}",
    "[2024-06-11 07:00:{n},123] [INFO] [logging.py:96:log_dist] [Rank 0] step={s}, skipped=0, lr=[0.0003]",
    " 42%|####2     | {s}/100000 [01:12<5:12:11,  5.31it/s, loss=2.1{d}]\r",
    "Epoch: [0][{s}/5005]\tTime 0.412 (0.420)\tData 0.001 (0.003)\tLoss 5.6502 (6.3792)",
    "[W socket.cpp:601] [c10d] The client socket cannot connect to [localhost]:29500 (errno: 97 ...",
    "UserWarning: This DataLoader will create 8 worker processes in total.",
    "Map (num_proc=8): 100%|##########| 20000/20000 [00:40<00:00, 26311.21 examples/s]",
    "Saved checkpoint to /results/step-{s}",
)


@cache
def noise(seed: int) -> str:
    draw = random.Random(seed)
    lines = (
        draw.choice(NOISE).format(n=draw.randrange(10, 60), d=draw.randrange(8), s=draw.randrange(100_000))
        for _ in range(NUM_NOISE_LINES // 2)
    )
    return "\n".join(lines) + "\n"


def assert_noise_changes_nothing(capture: dict[str, Any]) -> None:
    alone = diagnose_text(capture["log"])
    wrapped = diagnose_text(noise(1) + capture["log"].rstrip("\n") + "\n" + noise(2))
    if capture["cause"] == "not_enough_info" and not alone.evidence:
        assert wrapped.cause == NO_PROBLEM_FOUND  # the noise shows work going on
        return
    assert (wrapped.cause, wrapped.confidence) == (alone.cause, alone.confidence)
    assert wrapped.culprit_rank == alone.culprit_rank
    if alone.cause != NO_PROBLEM_FOUND:
        texts = [item.text for item in wrapped.evidence]
        assert alone.evidence[0].text in texts
        line = wrapped.evidence[texts.index(alone.evidence[0].text)].line
        assert line == alone.evidence[0].line + NUM_NOISE_LINES // 2


@pytest.mark.parametrize("capture", CAPTURES[7::67])
def test_noise_around_a_capture_changes_nothing(capture: dict[str, Any]) -> None:
    assert_noise_changes_nothing(capture)


@pytest.mark.slow
@pytest.mark.parametrize("capture", CAPTURES)
def test_noise_around_any_capture_changes_nothing(capture: dict[str, Any]) -> None:
    assert_noise_changes_nothing(capture)
