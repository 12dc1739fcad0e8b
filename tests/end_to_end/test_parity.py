"""`drivetrain parity` as a user runs it, and each cause of a difference with a task that has it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.bench.parity import run_trials
from drivetrain.bench.parity_compare import compare
from drivetrain.bench.parity_plan import Plan, Trial, trial_folder
from drivetrain.config.dump import write
from drivetrain.config.load import load
from drivetrain.config.overrides import Override

TASKS = Path(__file__).parents[1] / "parity_tasks.py"
STEPS = 25

# Task → the cause that must be named, and the kind of thing that differs first.
CAUSES = {
    "sharded_data": ("sample_order", "samples"),
    "noise_by_rank": ("augmentation", "inputs"),
    "scaled_start": ("initial_weights", "initial_weights"),
    "mean_of_means": ("loss_averaging", "loss"),
    "summed_gradients": ("loss_averaging", "gradient"),
    "not_reduced": ("not_reduced", "gradient"),
    "batch_norm": ("batchnorm", "loss"),
    "dropout": ("dropout", "loss"),
    "running_mean": ("buffers", "loss"),
    "scaled_rate": ("optimizer", "weight"),
    "chaos": ("reduction_order", "loss"),
}


def trial(folder, index, task, strategy, world_size, *, reverses=False):
    own = trial_folder(folder, index, f"{task}-{strategy}", world_size)
    keys = {
        "task": f"{TASKS}:{task}",
        "device": "cpu",
        "precision": "fp32",
        "deterministic": "true",
        "global_batch": "7",  # 4 and 3 on two ranks
        "schedule.name": "constant",
        "epochs": "100",
        "strategy": strategy,
        "timeout_s": "60",
    }
    config = load(None, [Override(key=key, text=text, where="test") for key, text in keys.items()])
    made = Trial(
        name=task, strategy=strategy, world_size=world_size, folder=own, reverses=reverses, timeout_s=60
    )
    write(config, made.config, ())
    return made


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """By (task, strategy): what was recorded, all in one launch of two ranks."""
    folder = tmp_path_factory.mktemp("parity")
    asked = [(task, strategy) for task in ("right", *CAUSES) for strategy in ("single", "ddp")]
    asked[2:2] = [("right", "fsdp")]
    # Among them, so that what follows shows that it is none the worse.
    asked[8:8] = [("refused_on_one_rank", "ddp"), ("killed", "ddp")]
    trials = [
        trial(folder, index, task, strategy, 1 if strategy == "single" else 2)
        for index, (task, strategy) in enumerate(asked)
    ]
    trials += [trial(folder, 90, name, "single", 1, reverses=True) for name in ("right", "chaos")]
    asked += [("right", "reversed"), ("chaos", "reversed")]
    plan = Plan(folder=folder, num_steps=STEPS, trials=tuple(trials))
    return dict(zip(asked, run_trials(plan, lambda line: None), strict=True))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "reversed"])
def test_a_right_task_is_equal_although_its_shares_are_not(records, strategy):
    found = compare(records["right", "single"], records["right", strategy])
    assert found.verdict == "equal", found
    assert 0 < found.loss_error < 1e-5
    assert found.gradient_error < 1e-3
    assert found.weight_error < 1e-3


@pytest.mark.parametrize("task", CAUSES)
def test_a_mistake_is_found_and_its_cause_named(records, task):
    rounding = records.get((task, "reversed"))
    found = compare(records[task, "single"], records[task, "ddp"], rounding)
    assert found.verdict == "differs"
    cause, what = CAUSES[task]
    assert (found.difference.cause.name, found.difference.what) == (cause, what), found.difference
    assert (found.difference.step == 1) == (task not in ("running_mean", "chaos"))


def test_a_refusal_on_one_rank_ends_the_trial_only(records):
    found = compare(records["right", "single"], records["refused_on_one_rank", "ddp"])
    assert found.verdict == "not_checked"
    assert "rank 1 cannot have it" in found.reason


def test_a_killed_rank_fails_the_trial_only(records):
    found = compare(records["right", "single"], records["killed", "ddp"])
    assert found.verdict == "failed"
    assert found.reason == "rank 1 was ended by signal 9"


def test_strategies_that_cannot_run_here_are_told_of_and_equal_ones_end_with_0(shell, tmp_path):
    done = shell(
        *("drivetrain", "parity", "digits", "--strategies", "data_parallel,ddp,fsdp:tp=3"),
        *("--world-sizes", "1,2", "--steps", 4, "--json", "--optim.clip-norm", 0.5, "--micro-batch", 30),
        CUDA_VISIBLE_DEVICES="",
        TMPDIR=str(tmp_path),
    )
    assert done.code == 0, done.err
    document = json.loads(done.out)
    by_name = {(item["strategy"], item["world_size"]): item for item in document["results"]}
    assert document["steps"] == 4
    assert len(document["reference"]["losses"]) == 4
    assert document["settings"] == {"precision": "fp32", "compile": "false", "deterministic": "true"}
    for world_size in (1, 2):
        item = by_name["ddp", world_size]
        assert item["status"] == "equal"
        assert item["max_rel_loss_error"] <= 1e-5
        assert item["first_difference"] is None
        assert "tp" in by_name["fsdp:tp=3", world_size]["reason"]
    assert by_name["data_parallel", 1]["status"] == "not_checked"
    assert "parity: ddp on 2 processes" in done.err
    assert not list(tmp_path.glob("drivetrain-parity-*"))


def test_a_difference_ends_with_4_and_keeps_the_runs(shell, tmp_path):
    done = shell(
        *("drivetrain", "parity", "--task", f"{TASKS}:dropout", "--strategies", "ddp", "--steps", 3),
        *("--device", "cpu", "--global-batch", 8),
        TMPDIR=str(tmp_path),
    )
    assert done.code == 4, done.err
    assert "Likely cause: dropout." in done.out
    assert "differs: dropout" in done.out
    (kept,) = tmp_path.glob("drivetrain-parity-*")
    assert str(kept) in done.out
    assert (kept / "trials" / "01-ddp-x2" / "rank-00001.jsonl").exists()


def test_an_interruption_ends_every_process(tmp_path):
    endless = ["--strategies", "ddp", "--steps", "100000", "--epochs", "100000", "--device", "cpu"]
    started = subprocess.Popen(
        [sys.executable, "-m", "drivetrain", "parity", "digits", *endless],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert started.stderr is not None
    for line in started.stderr:
        if "single on 1 process" in line:
            break
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=30)
    assert started.returncode == 130, err
    assert not processes_naming(str(tmp_path))
    assert not list(tmp_path.glob("drivetrain-parity-*"))


def processes_naming(text):
    """Processes, zombies aside, whose command line holds `text`; a forked trial has its parent's."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if text in words:
            found.append(words)
    return found
