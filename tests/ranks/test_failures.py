"""What goes wrong in a rank is said by all, at the same step, and no good checkpoint is lost."""

import math
import subprocess
from pathlib import Path

import pytest
import torch

import rank_programs as programs
from drivetrain.engine.checkpoint import files
from drivetrain.engine.checkpoint.load import read_model
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import MessageEvent
from drivetrain.telemetry.reader import read_events


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_nan_loss_stops_every_rank_naming_step_and_rank(ranks, tmp_path, world_size):
    texts = ranks.run(
        world_size,
        programs.failing,
        expected="NonFiniteLossError",
        steps=40,
        output=str(tmp_path),
        save_every=1,
        data={"nan_at": 20},
    )
    clean = ranks.run(world_size, programs.train, steps=7)
    step, rank = next(
        (index + 1, rank)
        for rank, result in enumerate(clean)
        for index, _, ids, _ in result["seen"]
        if 20 in ids
    )
    assert len(set(texts)) == 1
    assert f"the loss became nan first at step {step}, on rank {rank}" in texts[0]
    # The step before the first bad one is the last that was saved: no state with NaN in it was.
    latest = (tmp_path / "checkpoints" / "latest").resolve()
    assert latest.name == f"step-{step - 1:08d}"
    listed = files.listed_files(latest)
    assert files.damage(latest, listed, listed) is None


def test_a_bad_sample_fails_the_run_with_its_name(ranks):
    texts = ranks.run(2, _first_failure, bad=30)
    assert any("sample 30" in text and "cannot be read" in text for text in texts)


def _first_failure(bad):
    try:
        programs.train(steps=14, data={"bad": (bad,)}, timeout_s=5.0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing failed"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"needs the right to mount a tmpfs: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_while_saving_leaves_the_last_good_checkpoint(ranks, small_disk):
    results = ranks.run(
        2, programs.train_with_full_disk, output=str(small_disk / "run"), fill=str(small_disk / "filler")
    )
    for message, latest in results:
        assert "No space left on device" in message
        assert "earlier checkpoints are untouched" in message
        assert latest.endswith("step-00000002")
    folder = Path(results[0][1])
    listed = files.listed_files(folder)
    assert files.damage(folder, listed, listed) is None


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_step_with_nan_is_skipped_where_asked_and_changes_nothing(ranks, tmp_path, strategy):
    options = {"data": {"nan_at": 9}, "on_nan": "skip", "strategy": strategy, "ema_decay": 0.9}
    results = ranks.run(2, programs.train, steps=8, output=str(tmp_path), save_every=1, **options)
    bad = [step for step, loss in enumerate(results[0]["losses"], start=1) if math.isnan(loss)]
    assert 1 <= len(bad) < 8
    assert all(torch.isfinite(weight).all() for weight in results[0]["weights"].values())
    messages = [e.text for e in read_events(RunDir(tmp_path).rank_events(0), kinds={MessageEvent})]
    for step in bad:
        assert any(f"step {step} changed nothing: the loss was nan" in text for text in messages)
        # Ten checkpoints stay: the one before the first bad step is there unless that was the first.
        if step > 1:
            before, after = (
                read_model(RunDir(tmp_path).checkpoint(n), averaged=False) for n in (step - 1, step)
            )
            assert all(torch.equal(after[name], before[name]) for name in before)
