"""The closing words, held against simulated runs; every command in them must exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from simulated_run import Simulation

from drivetrain.report import summary
from drivetrain.report.summary import data_wait_verdict, summarise
from drivetrain.report.throughput import RankRates, Rates
from drivetrain.spec.outcome import Outcome, RankOutcome
from drivetrain.spec.run_dir import RunDir

VERBS = {"train", "launch", "export"}


def outcome(exit_code: int, failure: RankOutcome | None = None, restarts: int = 0) -> Outcome:
    return Outcome(
        exit_code=exit_code,
        world_size=2,
        restarts=restarts,
        started_wall_s=100.0,
        ended_wall_s=130.0,
        command=("python", "x.py"),
        earliest_failure=failure,
    )


def furnish(run_dir: RunDir) -> None:
    for folder in (run_dir.logs, run_dir.tensorboard):
        folder.mkdir(parents=True)
    run_dir.metrics.write_text("step\n")


def assert_verbs_exist(text: str) -> None:
    assert set(re.findall(r"drivetrain (\w+) ", text)) <= VERBS


def test_a_run_that_is_done(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "my run")
    furnish(run_dir)
    Simulation(run_dir=run_dir, bad={5: "a.jpg", 6: "b.jpg", 7: "c.jpg", 8: "d.jpg"}).write()
    text = summarise(run_dir, outcome(0))
    lines = text.splitlines()
    assert lines[0] == "digits is done: step 40 of 40, epoch 4.00, 0:12"
    result = "accuracy 90.00 %, loss 0.3 (best accuracy 92.00 % at step 20)"
    assert f"result    {result}, on 360 held-out samples after step 40" in lines
    assert any(line.startswith("speed     700 img/s in all, over ") for line in lines)
    assert "          by rank 0: 400 · 1: 300" in lines
    assert "time      steps 3.4 s, evaluation 0.8 s, checkpoints 0.4 s, start and the rest 7.4 s" in lines
    assert "          of a step: backward 54 %, forward 36 %, data wait 10 %" in lines
    assert "input     the input costs some speed: 10 % of the time was data wait" in lines
    assert "skipped   4 bad samples, counted with weight 0:" in lines
    assert "          a.jpg (truncated), step 5" in lines
    assert "          and 1 more in the events" in lines
    assert f"tensorboard --logdir '{run_dir.tensorboard}'" in text
    assert str(run_dir.metrics) in text
    assert f"drivetrain export '{run_dir.path}'" in text
    assert "--resume auto --epochs 8" in text
    assert "--nproc-per-node" not in text, "two processes share the CPUs already"
    assert_verbs_exist(text)


def test_a_run_that_waits_for_data_is_told_to_add_workers_and_not_processes(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    Simulation(run_dir=run_dir, data_wait_share=0.6).write()
    text = summarise(run_dir, outcome(0))
    assert "input-bound: the ranks stood waiting for data 60 % of the time" in text
    assert "--workers NUMBER" in text
    assert "--nproc-per-node" not in text
    assert_verbs_exist(text)


def test_a_run_on_gpus_that_keeps_them_busy_is_offered_more_of_them(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    Simulation(run_dir=run_dir, data_wait_share=0.01, device="cuda:0 NVIDIA H200").write()
    text = summarise(run_dir, outcome(0))
    assert "not input-bound: data wait was 1 % of the time" in text
    assert f"drivetrain train {run_dir.config} --output {run_dir.path}-4-processes --nproc-per-node 4" in text
    assert_verbs_exist(text)


def test_a_failed_run_says_what_is_safe_and_how_to_go_on(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    furnish(run_dir)
    Simulation(run_dir=run_dir).write(until=25, status=None)
    run_dir.checkpoint(24).mkdir()  # was being written
    failure = RankOutcome(
        rank=1, local_rank=1, node_rank=0, host="node7", pid=5, exit_code=1, message="ValueError: boom"
    )
    text = summarise(run_dir, outcome(1, failure))
    lines = text.splitlines()
    assert lines[0] == "digits failed: step 25 of 40, epoch 2.50, 0:30"
    assert lines[1] == "reason    rank 1 on node7 ended first, with exit code 1: ValueError: boom"
    assert "safe      the checkpoint of step 20; 5 steps after it must be done again" in lines
    assert f"drivetrain train {run_dir.config} --output {run_dir.path} --resume auto" in text
    assert "export" not in text
    assert_verbs_exist(text)


def test_a_run_that_failed_before_any_checkpoint_promises_nothing(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    Simulation(run_dir=run_dir).write(until=5, status="failed", reason="loss became NaN at step 6")
    text = summarise(run_dir, outcome(1))
    assert "reason    loss became NaN at step 6" in text
    assert "safe      nothing: no complete checkpoint was written" in text
    assert "--resume" not in text


def test_a_run_that_never_began(tmp_path: Path) -> None:
    text = summarise(RunDir(tmp_path / "run"), outcome(2))
    assert text.splitlines()[0] == "The run failed before it had begun to train, 0:30"
    assert summarise(RunDir(tmp_path / "run"), None).startswith("The run has not said how it ended")


@pytest.mark.parametrize("with_cluster", [True, False])
def test_a_resumed_run_tells_of_its_last_start_and_the_best_of_all(
    tmp_path: Path, with_cluster: bool
) -> None:
    run_dir = RunDir(tmp_path / "run")
    Simulation(run_dir=run_dir, with_cluster=with_cluster, step_s=5.0).write(until=25, status=None)
    Simulation(run_dir=run_dir, with_cluster=with_cluster, start_step=20, restart=1).write()
    text = summarise(run_dir, outcome(0, restarts=1))
    assert ", 1 restart" in text.splitlines()[0]
    assert "speed     700 img/s in all" in text
    assert "best accuracy 92.00 % at step 20" in text


def test_a_stopped_run_gets_the_resume_command(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    Simulation(run_dir=run_dir).write(until=20, status="stopped", reason="SIGTERM")
    text = summarise(run_dir, outcome(75))
    assert text.startswith("digits was stopped: step 20 of 40")
    assert "reason    SIGTERM" in text
    assert "safe      the checkpoint of step 20\n" in text
    assert "--resume auto" in text


def test_what_was_not_measured_is_said_to_be_not_known(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    Simulation(run_dir=run_dir, total_steps=2, eval_every=100).write()
    text = summarise(run_dir, outcome(0))
    assert "speed     not known" in text
    assert "input     data wait is not known" in text
    assert "0 img/s" not in text
    assert "nothing was evaluated" in text


def test_of_a_long_run_the_last_steps_tell_the_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "_MOST_STEP_BYTES", 10_000)
    run_dir = RunDir(tmp_path / "run")
    Simulation(run_dir=run_dir, total_steps=200, eval_every=50).write()
    text = summarise(run_dir, outcome(0))
    assert "digits is done: step 200 of 200" in text
    assert "accuracy 90.00 %, loss 0.3, the best so far" in text
    assert re.search(r"700 img/s in all, over [12]\d usual steps", text)
    assert "steps 3.4 s" not in text, "a sum over some of the steps is not the run's"
    assert "time      of a step: backward 54 %" in text


def test_one_rank_that_waits_more_is_named() -> None:
    per_rank = {
        0: RankRates(samples_per_s=1.0, data_wait_share=0.02),
        1: RankRates(samples_per_s=1.0, data_wait_share=0.30),
    }
    rates = Rates(
        per_rank=per_rank, samples_per_s=2.0, data_wait_share=0.16, seconds_per_step=1.0, num_steps=10
    )
    assert data_wait_verdict(rates) == (
        "the input costs some speed: 16 % of the time was data wait, rank 1 most (30 %)"
    )
