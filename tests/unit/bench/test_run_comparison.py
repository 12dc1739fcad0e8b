"""Two runs by their certificates."""

import json

import pytest

from drivetrain.bench.run_comparison import as_json, as_text, compare_runs
from drivetrain.spec.errors import InputError


@pytest.fixture
def run(tmp_path):
    def make(name, num_steps=5, **changes):
        folder = tmp_path / name
        folder.mkdir()
        lines = []
        for step in range(1, num_steps + 1):
            line = {"step": step, "samples": f"chain{step}", "loss": 2.0 / step, "grad_norm": None}
            if step % 2 == 0:
                line["weights"] = [10.0 + step, 10.0 + step]
            line |= changes.get(f"step{step}", {})
            lines.append(json.dumps(line))
        (folder / "certificate.jsonl").write_text("\n".join(lines) + "\n")
        return folder

    return make


def test_equal_runs_are_the_same_to_the_bit(run):
    comparison = compare_runs(run("a"), run("b", num_steps=7))
    assert comparison.is_same_to_the_bit
    assert (
        as_text(comparison) == "5 steps in common, 2 more in the second run\nthe runs are the same to the bit"
    )


@pytest.mark.parametrize(
    ("changes", "what", "step"),
    [
        ({"step3": {"samples": "other"}}, "samples", 3),
        ({"step2": {"loss": 1.1}}, "loss", 2),
        ({"step2": {"loss": None}}, "loss", 2),
        ({"step4": {"weights": [14.0, 15.0]}}, "weights", 4),
    ],
)
def test_the_first_step_that_differs_is_named(run, changes, what, step):
    comparison = compare_runs(run("a"), run("b", **changes))
    document = as_json(comparison)
    assert document["status"] == "differs"
    assert (document["first_difference"]["what"], document["first_difference"]["step"]) == (what, step)
    assert f"at step {step}" in as_text(comparison)


def test_rounding_is_no_difference_but_is_told(run):
    comparison = compare_runs(run("a"), run("b", step3={"loss": 2.0 / 3 * (1 + 3e-7)}))
    assert not comparison.partings
    assert not comparison.is_same_to_the_bit
    assert comparison.max_rel_loss_error == pytest.approx(3e-7, rel=0.1)


def test_other_numbers_of_ranks_have_no_weights_to_compare(run):
    assert not compare_runs(run("a"), run("b", step2={"weights": [1.0]})).partings


def test_a_torn_last_line_is_passed_over_and_damage_before_it_is_not(run):
    a, b = run("a"), run("b")
    path = b / "certificate.jsonl"
    path.write_text(path.read_text() + '{"step": 6, "sam')
    assert compare_runs(a, b).steps == 5
    path.write_text("x" + path.read_text())
    with pytest.raises(InputError, match="line 1: it is damaged"):
        compare_runs(a, b)


def test_a_folder_without_a_certificate_is_refused(run, tmp_path):
    with pytest.raises(InputError, match="there is no such folder"):
        compare_runs(run("a"), tmp_path / "none")
