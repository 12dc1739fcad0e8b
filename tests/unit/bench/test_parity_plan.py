"""What the ranks wrote, read back; and how a trial ended."""

import os

import pytest

from drivetrain.bench.parity_plan import Plan, Trial, read_plan, trial_folder, write_plan
from drivetrain.bench.parity_records import (
    Fingerprint,
    Piece,
    RankFacts,
    RankStep,
    RecordWriter,
    Sample,
    read_record,
)

FACTS = RankFacts(strategy="ddp", layout="dp_replicate=2", batch="b", batch_norms=("n",), dropouts=())
STEP = RankStep(
    step=1,
    samples={5: Sample(id=2, content="ab")},
    pieces=(Piece(size=2, num_valid=1.0, weight=0.1 + 0.2),),
    loss=1 / 3,
    grad_norm=None,
    drew_random=True,
)
PRINT = Fingerprint(norm=float("inf"), products=(0.1, float("nan")))


def test_a_record_is_read_as_it_was_written(tmp_path):
    writer = RecordWriter(tmp_path / "r.jsonl")
    writer.facts(FACTS)
    writer.step(STEP)
    writer.prints(1, "gradient", {"w": Fingerprint(norm=0.1, products=(0.2, -0.3))})
    writer.prints(1, "gradient", {"v": PRINT})
    writer.end("refused", "why")
    record = read_record(tmp_path / "r.jsonl", 3, missing="no end")
    assert (record.rank, record.facts, record.steps) == (3, FACTS, {1: STEP})
    assert record.prints[1, "gradient"]["w"] == Fingerprint(norm=0.1, products=(0.2, -0.3))
    assert record.prints[1, "gradient"]["v"].norm == float("inf")
    assert (record.status, record.reason) == ("refused", "why")


def test_a_torn_record_is_a_failed_one_up_to_there(tmp_path):
    path = tmp_path / "r.jsonl"
    writer = RecordWriter(path)
    writer.facts(FACTS)
    writer.step(STEP)
    writer.end("done")
    facts, step, _ = path.read_text().splitlines(keepends=True)
    path.write_text(facts + step[:-20])
    record = read_record(path, 0, missing="killed")
    assert (record.facts, record.steps, record.status, record.reason) == (FACTS, {}, "failed", "killed")


@pytest.fixture
def trial(tmp_path):
    return Trial(name="ddp", strategy="ddp", world_size=2, folder=trial_folder(tmp_path, 1, "a:b=2,c", 2))


def mark(trial, rank, code, time_s):
    trial.mark_ended(rank, code)
    (path,) = trial.folder.glob(f"ended-{rank:05d}*")
    os.utime(path, (time_s, time_s))


def record(trial, rank, status, reason=""):
    RecordWriter(trial.record(rank)).end(status, reason)


def test_the_plan_survives_its_file(tmp_path, trial):
    plan = Plan(folder=tmp_path, num_steps=7, trials=(trial,))
    write_plan(plan)
    assert read_plan(tmp_path) == plan


def test_a_good_end_has_no_reason(trial):
    for rank in (0, 1):
        record(trial, rank, "done")
        mark(trial, rank, 0, rank)
    assert (trial.read().status, trial.read().reason) == ("done", "")


def test_the_first_failure_gives_the_reason(trial):
    record(trial, 0, "failed", "connection lost")
    record(trial, 1, "failed", "out of memory")
    mark(trial, 0, 1, 20)
    mark(trial, 1, 1, 10)
    assert trial.read().reason == "out of memory"


def test_a_rank_that_died_speaks_before_those_that_lost_it_and_stopped_ones_last(trial):
    record(trial, 0, "failed", "connection lost")
    mark(trial, 0, 1, 10)
    mark(trial, 1, -9, 20)
    assert trial.read().reason == "rank 1 was ended by signal 9"
    (trial.folder / "ended-00001.-9").unlink()
    mark(trial, 1, None, 5)
    assert trial.read().reason == "connection lost"


def test_a_refusal_on_any_rank_refuses_the_trial(trial):
    record(trial, 0, "refused", "not here")
    mark(trial, 0, 2, 10)
    mark(trial, 1, None, 20)
    assert (trial.read().status, trial.read().reason) == ("refused", "not here")


def test_ranks_that_never_started_are_told_of(trial):
    assert (trial.read().status, trial.read().reason) == ("failed", "rank 0 was not started")
