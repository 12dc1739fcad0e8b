"""The closing words, held against simulated runs; every command in them must exist."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
import time
from pathlib import Path

import pytest
from simulated_run import Simulation, open_writer

from drivetrain.cli.options import TrainArguments, train_options
from drivetrain.config.dump import write
from drivetrain.config.load import load
from drivetrain.config.overrides import from_command_line
from drivetrain.config.schema import RunConfig
from drivetrain.report import this_start
from drivetrain.report.phrases import data_wait_verdict
from drivetrain.report.summary import summarise
from drivetrain.report.throughput import RankRates, Rates
from drivetrain.spec.outcome import Outcome, RankOutcome
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import RunEnded

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
    text = summarise(run_dir, outcome(0), width=200)
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
    assert "my run-longer' --max-steps null --epochs 8" in text
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
    assert text.splitlines()[0] == "The run failed before its first step, 0:30"
    assert summarise(RunDir(tmp_path / "run"), None).startswith("The run has not said how it ended")


def write_config(run_dir: RunDir, **overrides: object) -> None:
    """config.yaml as a run leaves it: the recipe `digits`, changed."""
    changes = [from_command_line(f"--{key}", str(value)) for key, value in overrides.items()]
    run_dir.path.mkdir(parents=True, exist_ok=True)
    write(load("digits", changes), run_dir.config)


def printed_config(text: str, purpose: str) -> RunConfig:
    """The run file that the command printed below `purpose` asks for, through the real command line."""
    lines = text.splitlines()
    index = next(number for number, line in enumerate(lines) if purpose in line)
    while not lines[index].strip().startswith("drivetrain train "):
        index += 1
    seen: list[TrainArguments] = []

    def capture(arguments: TrainArguments) -> int:
        seen.append(arguments)
        return 0

    train_options(capture).main(shlex.split(lines[index])[2:], standalone_mode=False)
    return load(seen[0].recipe, seen[0].overrides)


def steps_of(config: RunConfig, num_samples: int) -> int:
    limits = [] if config.max_steps is None else [config.max_steps]
    if config.epochs is not None:
        limits.append(math.ceil(config.epochs * num_samples / config.global_batch))
    return min(limits)


@pytest.mark.parametrize(
    ("limits", "total_steps"),
    [({"epochs": 4}, 40), ({"epochs": 50, "max-steps": 15}, 15), ({"epochs": "null", "max-steps": 20}, 20)],
)
def test_the_command_for_twice_as_long_really_trains_twice_as_long(
    tmp_path: Path, limits: dict[str, object], total_steps: int
) -> None:
    run_dir = RunDir(tmp_path / "my run")
    write_config(run_dir, **limits, **{"global-batch": 7})
    assert steps_of(load(run_dir.config), 70) == total_steps
    Simulation(run_dir=run_dir, total_steps=total_steps).write()
    config = printed_config(summarise(run_dir, outcome(0)), "train twice as long")
    assert steps_of(config, 70) == 2 * total_steps
    assert config.output == f"{run_dir.path}-longer"


def test_a_run_that_diverged_is_not_praised_and_gets_a_tenth_of_its_learning_rate(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    write_config(run_dir, **{"optim.lr": "5e-2"})
    metrics = {10: {"accuracy": 0.1, "loss": 9.0}, 40: {"accuracy": 0.2, "loss": 7e7}}
    Simulation(
        run_dir=run_dir,
        losses=lambda step: 2.3 * 1.5**step,
        metrics=lambda step: metrics.get(step, metrics[10]),
    ).write()
    text = summarise(run_dir, outcome(0), width=200)
    lines = text.splitlines()
    assert lines[0] == "digits ended, but its training diverged: step 40 of 40, epoch 4.00, 0:12"
    assert re.fullmatch(
        r"diverged  the training loss grew from 3.45 at step 1 to \d.*e\+\d+ at step 40", lines[1]
    )
    assert lines[2] == "          the held-out loss grew from 9 at step 10 to 7e+07 at step 40"
    assert "best so far" not in text
    assert "twice as long" not in text
    config = printed_config(text, "a tenth of the learning rate (it was 0.05), anew")
    assert config.optim.lr == pytest.approx(5e-3)
    assert config.output == f"{run_dir.path}-lower-lr"
    assert_verbs_exist(text)


def test_without_a_run_file_the_highest_rate_seen_is_divided(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    Simulation(run_dir=run_dir, losses=lambda step: 2.0**step).write(until=25, status="failed", reason="nan")
    text = summarise(run_dir, outcome(1))
    assert "run-lower-lr --lr 0.01\n" in text, "the simulated rate is 0.1"
    assert text.index("--lr") < text.index("--resume auto")


def failed(message: str) -> RankOutcome:
    return RankOutcome(rank=0, local_rank=0, node_rank=0, host="node7", pid=5, exit_code=1, message=message)


@pytest.mark.parametrize("has_header", [True, False])
def test_a_start_that_failed_in_set_up_shows_nothing_of_the_start_before(
    tmp_path: Path, has_header: bool
) -> None:
    run_dir = RunDir(tmp_path / "run")
    Simulation(run_dir=run_dir).write(until=25)
    furnish(run_dir)
    run_dir.launch.mkdir()
    run_dir.asked_config.write_text("name: renamed\n")
    begun_s = time.time()
    if has_header:
        with open_writer(Simulation(run_dir=run_dir), 0) as writer:
            writer.write(RunEnded(status="failed", reason="boom", step=0, seconds=3.0))
    else:
        begun_s += 3600  # what stands there is too old to be this start's
    end = dataclasses.replace(outcome(1, failed("ValueError: boom")), started_wall_s=begun_s)
    end = dataclasses.replace(end, ended_wall_s=begun_s + 3)
    text = summarise(run_dir, end, width=200)
    assert text == (
        "renamed failed before its first step, 3.0 s\n"
        "reason    rank 0 on node7 ended first, with exit code 1: ValueError: boom\n\n"
        "safe      the checkpoint of step 20\n\n"
        "try next  go on from the checkpoint:\n"
        f"            drivetrain train {run_dir.config} --output {run_dir.path} --resume auto"
    )


def test_a_run_ended_from_outside_was_interrupted_and_did_not_fail(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    Simulation(run_dir=run_dir).write(until=25, status="failed", reason="KeyboardInterrupt")
    error = "the launcher was interrupted by SIGINT; all ranks were ended"
    text = summarise(run_dir, dataclasses.replace(outcome(130), error=error))
    assert text.splitlines()[:2] == [
        "digits was interrupted: step 25 of 40, epoch 2.50, 0:12",
        f"reason    {error}",
    ]
    assert "failed" not in text
    assert summarise(run_dir, None).startswith("digits was interrupted: step 25")


@pytest.mark.parametrize("total_steps", [8, 12])
def test_a_run_with_nothing_left_to_do_says_so(tmp_path: Path, total_steps: int) -> None:
    run_dir = RunDir(tmp_path / "run")
    Simulation(run_dir=run_dir, total_steps=12, eval_every=6).write()
    again = Simulation(run_dir=run_dir, total_steps=total_steps, start_step=12)
    again.write()
    text = summarise(run_dir, outcome(0), width=200)
    left = f"nothing was left to do: {total_steps} steps asked for, 12 done before"
    assert text.splitlines()[0] == f"digits is done; {left}"
    assert "speed" not in text
    assert "result    accuracy" in text
    assert "--max-steps 24 --epochs null" in text


def test_in_80_columns_lines_break_between_words_and_commands_do_not(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / ("a-long-name-" * 5) / "run")
    furnish(run_dir)
    Simulation(run_dir=run_dir, data_wait_share=0.6).write(until=25, status="failed", reason="why " * 40)
    text = summarise(run_dir, outcome(1, failed("first line of it\n" + "second line " * 12)), width=80)
    for line in text.splitlines():
        is_whole = str(run_dir.path) in line
        assert len(line) <= 80 or is_whole, line
        assert line == line.rstrip()
    assert f"\n            drivetrain train {run_dir.config} --output {run_dir.path} --resume auto" in text
    assert f"look at   {run_dir.logs}/\n            # what each rank printed\n" in text
    assert "first line of it\n          second line second line" in text
    assert not re.search(r"\d\n +%", text), "a number stays with its per cent sign"
    words = " ".join(text.split())
    wide = " ".join(
        summarise(run_dir, outcome(1, failed("first line of it\n" + "second line " * 12)), width=999).split()
    )
    assert words == wide, "no word was broken"


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
    monkeypatch.setattr(this_start, "_MOST_STEP_BYTES", 10_000)
    run_dir = RunDir(tmp_path / "run")
    Simulation(run_dir=run_dir, total_steps=200, eval_every=50).write()
    text = summarise(run_dir, outcome(0))
    assert "digits is done: step 200 of 200" in text
    assert "accuracy 90.00 %, loss 0.3 (best accuracy 90.00 % at step 50)" in text
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
