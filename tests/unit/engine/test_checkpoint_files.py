import os

import pytest

from drivetrain.engine.checkpoint import files
from drivetrain.spec.errors import CheckpointError
from drivetrain.spec.run_dir import RunDir


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path)


def make(run_dir, step, content="tensors"):
    unfinished = files.unfinished_path(run_dir, step)
    unfinished.mkdir(parents=True)
    (unfinished / "a.distcp").write_text(content)
    files.complete(unfinished, run_dir.checkpoint(step), files.sums_of(unfinished, ["a.distcp"]))
    files.point_latest(run_dir, step)
    return run_dir.checkpoint(step)


def names_in(run_dir):
    return sorted(path.name for path in run_dir.checkpoints.iterdir())


def problem_of(folder):
    try:
        listed = files.listed_files(folder)
    except CheckpointError as error:
        return error.found
    return files.damage(folder, listed, listed)


def test_a_completed_folder_is_whole_and_latest(run_dir):
    folder = make(run_dir, 10)
    assert problem_of(folder) is None
    assert run_dir.latest.resolve() == folder.resolve()
    assert files.complete_steps(run_dir) == [10]


def _truncate(folder):
    os.truncate(folder / "a.distcp", 3)


def _flip(folder):
    (folder / "a.distcp").write_text("tensorz")


def _remove(folder):
    (folder / "a.distcp").unlink()


def _unmark(folder):
    (folder / files.COMPLETE).unlink()


def _swap_list(folder):
    (folder / files.CHECKSUMS).write_text("{}")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_truncate, "has 3 bytes instead of 7"),
        (_flip, "does not match its checksum"),
        (_remove, "is missing"),
        (_unmark, "not marked COMPLETE"),
        (_swap_list, "does not match COMPLETE"),
    ],
)
def test_each_kind_of_damage_is_recognised(run_dir, harm, said):
    folder = make(run_dir, 10)
    harm(folder)
    assert said in problem_of(folder)


def test_a_folder_without_its_mark_does_not_count(run_dir):
    make(run_dir, 10)
    _unmark(make(run_dir, 20))
    assert files.complete_steps(run_dir) == [10]


def test_saving_a_step_again_replaces_it(run_dir):
    make(run_dir, 10, "first")
    folder = make(run_dir, 10, "second")
    assert (folder / "a.distcp").read_text() == "second"
    files.prune(run_dir, keep=1)
    assert names_in(run_dir) == ["latest", "step-00000010"]


def test_pruning_keeps_the_newest_and_leaves_a_save_under_way_alone(run_dir):
    for step in (10, 20, 30):
        make(run_dir, step)
    files.unfinished_path(run_dir, 40).mkdir()
    files.prune(run_dir, keep=2)
    assert names_in(run_dir) == [".unfinished-step-00000040", "latest", "step-00000020", "step-00000030"]


def test_what_unfinished_saves_left_is_removed_when_asked(run_dir):
    make(run_dir, 10)
    files.unfinished_path(run_dir, 20).mkdir()
    files.remove_unfinished(run_dir)
    assert names_in(run_dir) == ["latest", "step-00000010"]


def test_a_checkpoint_whose_replacement_was_interrupted_takes_its_place_again(run_dir):
    good = make(run_dir, 10, "first")
    aside = good.rename(good.with_name(f".unfinished-replaced-{good.name}"))
    good.mkdir()  # moved in, but not marked COMPLETE
    files.remove_unfinished(run_dir)
    assert (good / "a.distcp").read_text() == "first"
    assert problem_of(good) is None
    assert not aside.exists()
