import pytest

from drivetrain.spec.errors import InputError, NonFiniteLossError
from drivetrain.spec.exit_codes import ExitCode, exit_code_for_signal
from drivetrain.spec.run_dir import RunDir, step_of_checkpoint
from drivetrain.spec.unknown import Unknown


def test_unknown_refuses_to_be_a_truth():
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(Unknown("no driver"))


def test_an_input_error_says_what_was_asked_found_and_what_to_do():
    text = str(InputError("--lr x", "not a number", "give 0.1"))
    assert text == "--lr x: not a number\n  → give 0.1"


def test_a_nonfinite_loss_names_the_first_step_and_rank():
    text = str(NonFiniteLossError(step=7, ranks=(1,), what="the loss", value=float("nan"), do="lower lr"))
    assert "nan first at step 7, on rank 1" in text


def test_exit_codes_are_the_documented_ones():
    assert [int(code) for code in ExitCode] == [0, 1, 2, 3, 4, 75, 76, 77]
    assert exit_code_for_signal(9) == 137


def test_names_in_a_run_directory(tmp_path):
    run_dir = RunDir(tmp_path)
    assert run_dir.log(3).name == "rank-00003.log"
    assert run_dir.checkpoint(1000).name == "step-00001000"
    assert step_of_checkpoint(run_dir.checkpoint(1000)) == 1000
    assert step_of_checkpoint(tmp_path / "latest") is None
    assert not run_dir.is_used
    run_dir.events.mkdir()
    assert run_dir.is_used
