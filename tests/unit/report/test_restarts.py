"""What a restart cost, from the launcher's line and rank 0's events."""

import dataclasses
from pathlib import Path

import pytest
from simulated_run import Simulation

from drivetrain.report.restarts import PARTS, rows, timed_restarts
from drivetrain.report.summary import summarise
from drivetrain.spec.restart import Restart, Why
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import Header
from drivetrain.telemetry.reader import read_events


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """Ended at step 25; started anew from step 20."""
    found = RunDir(tmp_path / "run")
    Simulation(run_dir=found).write(until=25, status=None)
    Simulation(run_dir=found, start_step=20, restart=1).write()
    found.launch.mkdir()
    return found


def restart_of(run_dir: RunDir) -> Restart:
    second = [e for e in read_events(run_dir.rank_events(0)) if isinstance(e, Header)][-1]
    return Restart(
        why=Why.FAILED,
        attempt=1,
        world_size_before=2,
        world_size=2,
        rank=1,
        signal=9,
        noticed_wall_s=second.wall_s - 1.0,
        ended_wall_s=second.wall_s - 0.75,
        formed_wall_s=second.wall_s - 0.5,
        started_wall_s=second.wall_s - 0.25,
        is_forked=True,
    )


def test_the_parts_follow_each_other_and_sum_to_what_was_lost(run_dir: RunDir) -> None:
    restart = restart_of(run_dir)
    run_dir.restarts.write_text(restart.to_line() + "\n" + restart.to_line()[:-9])  # the last one is torn
    (timed,) = timed_restarts(run_dir)
    assert timed.restart == restart
    assert tuple(timed.parts) == PARTS
    assert [timed.parts[name] for name in PARTS[:3]] == pytest.approx([0.25, 0.25, 0.5], abs=1e-5)
    assert (timed.last_step, timed.resumed_step) == (25, 20)
    assert timed.seconds == pytest.approx(sum(timed.parts.values()))
    expected = (
        f"after rank 1 was killed by SIGKILL at step 25: {timed.seconds:.1f} s lost, resumed at step 20"
    )
    assert str(timed) == expected
    text = summarise(run_dir, None, width=200)
    assert f"restarted {expected}" in " ".join(text.split())


def test_a_restart_that_never_trained_claims_no_time(run_dir: RunDir) -> None:
    late = dataclasses.replace(
        restart_of(run_dir), attempt=2, why=Why.LOST, rank=None, signal=None, world_size=1
    )
    run_dir.restarts.write_text((late.to_line() + "\n") * 6)
    timed = timed_restarts(run_dir)
    assert timed[0].seconds is None
    told = rows(timed)
    assert told[0] == (
        "restarted",
        "without a machine that is gone, 2 → 1 rank; its first step was not seen",
    )
    assert told[-1] == ("", "and 2 times more: launch/restarts.jsonl")
