"""`drivetrain train`: what it loads, refuses, prints and launches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import drivetrain
from drivetrain.config.load import load
from drivetrain.spec.errors import InputError


def config_of(shown):
    assert shown.code == 0, shown.err
    return yaml.safe_load(shown.out)


def everything_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_print_config_prints_every_key_and_creates_nothing(cli, folder):
    shown = cli("train", "digits", "--print-config")
    assert config_of(shown)["model"]["name"] == "digits_cnn"
    assert "# launch.nproc_per_node: " in shown.out
    assert everything_in(folder) == []
    (folder / "again.yaml").write_text(shown.out)
    assert load(folder / "again.yaml") == load("digits")


def test_print_config_on_a_machine_that_cannot_run_it_says_so_in_a_comment(cli):
    shown = cli("train", "digits", "--print-config", "--device", "cuda")
    assert config_of(shown)["device"] == "cuda"
    assert "# on this machine it cannot run: device cuda: no GPU is visible" in shown.out


def test_flags_and_overrides_set_their_keys_with_dashes_or_underscores(cli):
    shown = cli(
        *("train", "digits", "--print-config", "--lr", "0.5", "--nproc_per_node", "3", "--global-batch=64"),
        *(
            "--compile",
            "--max_steps",
            "7",
            "--workers",
            "0",
            "--resume",
            "auto",
            "--optim.weight_decay",
            "0.25",
        ),
        *(
            "--standalone",
            "--output",
            "out",
            "--precision",
            "bf16",
            "--name",
            "x",
            "--evaluate.every-epochs",
            "null",
        ),
    )
    config = config_of(shown)
    assert (config["optim"]["lr"], config["optim"]["weight_decay"]) == (0.5, 0.25)
    assert (config["launch"]["nproc_per_node"], config["launch"]["standalone"]) == (3, True)
    assert (config["global_batch"], config["max_steps"], config["data"]["workers"]) == (64, 7, 0)
    assert (config["compile"], config["resume"], config["output"]) == (True, "auto", "out")
    assert (config["precision"], config["name"], config["evaluate"]["every_epochs"]) == ("bf16", "x", None)
    assert config_of(cli("train", "digits", "--print-config", "--no-compile"))["compile"] is False


def test_j_sets_machines_and_processes(cli):
    launch = config_of(cli("train", "digits", "--print-config", "-j", "2x8", "--rdzv-endpoint", "h"))[
        "launch"
    ]
    assert (launch["nnodes"], launch["nproc_per_node"]) == ("2", 8)
    assert cli("train", "digits", "-j", "2by8").code == 2
    assert "give one of them" in cli("train", "digits", "-j", "1x2", "--nproc-per-node", "2").err


def test_pet_variables_are_the_launch_flags_defaults(cli, monkeypatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "5")
    monkeypatch.setenv("PET_MAX_RESTARTS", "2")
    launch = config_of(cli("train", "digits", "--print-config", "--max-restarts", "1"))["launch"]
    assert (launch["nproc_per_node"], launch["max_restarts"]) == (5, 1)


def test_a_bad_flag_is_reported_by_the_name_it_was_written_with(cli, folder):
    shown = cli("train", "digits", "--lr", "abc", "--seeed", "1", "--epochs", "0")
    assert shown.code == 2
    assert "the command line, --lr: optim.lr: 'abc' is not a number greater than 0" in shown.err
    assert "the command line, --seeed: seeed: there is no such key; did you mean seed?" in shown.err
    assert "the command line, --epochs" in shown.err
    assert everything_in(folder) == []


def test_nothing_to_train_names_the_recipes(cli):
    shown = cli("train")
    assert shown.code == 2
    assert "digits, gpt, gpt_1b, resnet50, vit_b16" in shown.err


def test_a_token_file_that_cannot_be_used_is_refused_before_anything_is_created(cli, folder, launched):
    (folder / "x.tokens").write_text("not one")
    shown = cli("train", "gpt", "--data.path", "x.tokens")
    assert shown.code == 2
    assert "token file x.tokens: it does not begin as one" in shown.err
    assert "train.tokens" in cli("train", "gpt", "--data.path", ".").err
    assert everything_in(folder) == ["x.tokens"]
    assert launched.requests == []


def test_a_run_is_written_down_then_launched_then_summed_up(cli, folder, launched, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    shown = cli("train", "digits", "--nproc-per-node", "3", "--output", "out/a", "--max-restarts", "2")
    (request,) = launched.requests
    assert shown.code == 0
    assert request.command == (sys.executable, "-u", "-m", "drivetrain.train.worker", "out/a")
    assert (str(request.folder), request.nproc_per_node, request.max_restarts) == ("out/a", 3, 2)
    assert launched.lines == ["a line of rank 0"]
    assert shown.out == "summary of out/a\n"
    config = load(folder / "out/a/launch/config.yaml")
    assert (config.name, config.launch.nproc_per_node) == ("digits", 3)
    assert "# drivetrain " in (folder / "out/a/launch/config.yaml").read_text()
    # The run's own config.yaml is the trainer's to write: nothing has been trained here.
    assert not (folder / "out/a/config.yaml").exists()


def test_ranks_get_a_number_of_threads_and_the_reason_is_said(cli, folder, launched, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    shown = cli("train", "digits", "--nproc-per-node", "2")
    assert int(launched.requests[0].environment["OMP_NUM_THREADS"]) >= 1
    assert "OMP_NUM_THREADS=" in shown.err
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    shown = cli("train", "digits", "--nproc-per-node", "2")
    assert "OMP_NUM_THREADS" not in launched.requests[1].environment
    assert shown.err == ""


def test_advice_is_said_at_the_start_and_kept_with_the_run(cli, folder, launched):
    shown = cli("train", "digits", "--global-batch", "960", "--output", "o")
    said = "optim.lr 0.004 was written for a global batch of 96"
    assert shown.code == 0
    assert said in shown.err
    assert f"# {said}" in (folder / "o/launch/config.yaml").read_text()
    assert f"# {said}" in cli("train", "digits", "--global-batch", "960", "--print-config").out


def test_a_run_without_output_gets_a_folder_of_its_own(cli, folder, launched):
    for _ in range(2):
        assert cli("train", "digits").code == 0
    folders = {str(request.folder) for request in launched.requests}
    assert len(folders) == 2
    assert all(name.startswith("runs/digits-20") for name in folders)


def test_a_failed_launch_ends_with_the_failure_and_its_code(cli, launched):
    launched.exit_code = 137
    shown = cli("train", "digits")
    assert shown.code == 137
    assert shown.err.splitlines()[-1] == "rank 1 failed first"


@pytest.mark.parametrize(
    "args, wanted",
    [
        (["--device", "cuda"], "no GPU is visible"),
        (["--nproc-per-node", "97"], "1 ranks would get no sample"),
        (["--output", "taken", "--resume", "none"], "already written there"),
        (["--output", "file"], "it is a file"),
        (["--output", "file/below"], "file is a file"),
        (["--output", "/proc/no/such"], "cannot be created"),
        (["--resume", "no/such/checkpoint"], "no such checkpoint"),
        (["--nnodes", "2", "--rdzv-endpoint", "h:1"], "--output FOLDER"),
        (["--data.kind", "image_folder", "--data.path", "no/such"], "no/such"),
    ],
)
def test_what_cannot_run_is_refused_and_nothing_is_created(cli, folder, launched, args, wanted):
    (folder / "taken").mkdir()
    (folder / "taken/config.yaml").touch()
    (folder / "file").touch()
    before = everything_in(folder)
    shown = cli("train", "digits", *args)
    assert (shown.code, shown.out) == (2, "")
    assert wanted in shown.err
    assert everything_in(folder) == before
    assert launched.requests == []


def test_a_launch_refused_at_the_last_moment_leaves_nothing(cli, folder, launched, monkeypatch):
    def refuse(request, **_):
        (request.folder / "logs").mkdir()
        raise InputError("--master-port 1", "it is taken", "choose another")

    monkeypatch.setattr(sys.modules["drivetrain.launch.torchrun"], "launch", refuse)
    (folder / "runs").mkdir()
    assert cli("train", "digits", "--output", "runs/deep/a").code == 2
    assert everything_in(folder) == ["runs"]


def test_a_run_that_its_ranks_refuse_leaves_only_what_was_there(cli, folder, launched):
    launched.exit_code = 2
    shown = cli("train", "digits", "--output", "runs/a")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.splitlines()[-1] == "rank 1 failed first"
    assert everything_in(folder) == []
    (folder / "runs/a/checkpoints").mkdir(parents=True)
    assert cli("train", "digits", "--output", "runs/a").code == 2
    assert (folder / "runs/a/checkpoints").is_dir()


def test_a_used_folder_is_taken_when_resuming(cli, folder, launched):
    (folder / "taken/checkpoints").mkdir(parents=True)
    assert cli("train", "digits", "--output", "taken", "--resume", "auto").code == 0
    assert len(launched.requests) == 1


def test_started_by_torchrun_this_process_is_the_rank(cli, folder, launched, monkeypatch):
    for rank in (1, 0):
        for name, value in {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job/5")
        assert cli("train", "digits").code == 7
    assert {str(path) for _, path in launched.worker} == {"runs/digits-job-5"}
    assert load(folder / "runs/digits-job-5/launch/config.yaml") == launched.worker[0][0]
    assert launched.requests == []
    (folder / "runs/digits-job-5/events").mkdir()  # as the ranks would have made
    # A second job of that name is refused, but a restart of the same one finds its own folder.
    (folder / "runs/digits-job-5/config.yaml").touch()  # by the ranks, once they train
    assert "already written there" in cli("train", "digits", "--resume", "none").err
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert cli("train", "digits", "--resume", "none").code == 7


def test_ranks_of_one_machine_agree_on_a_folder_without_a_job_number(cli, launched, monkeypatch):
    for rank in (0, 1):
        for name, value in {"RANK": rank, "SIZE": 2, "LOCAL_SIZE": 2}.items():
            monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
        assert cli("train", "digits").code == 7
    assert len({path for _, path in launched.worker}) == 1
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1")
    assert "--output FOLDER" in cli("train", "digits").err  # two machines, and nothing that both know


def test_dry_run_prints_the_command_and_creates_nothing(cli, folder):
    shown = cli("train", "digits", "--dry-run", "--nproc-per-node", "2", "--output", "o")
    assert shown.code == 0
    assert shown.out.count("-m drivetrain.train.worker o") == 2
    assert everything_in(folder) == []


def test_a_folder_of_one_class_is_refused_before_anything_starts(cli, folder, launched):
    for split in ("train", "val"):
        (folder / "images" / split / "a").mkdir(parents=True)
        (folder / "images" / split / "a" / "1.png").write_bytes(b"looked at by the ranks")
    shown = cli("train", "resnet50", "--data.path", "images")
    assert shown.code == 2
    assert "a classifier needs at least two" in shown.err
    assert everything_in(folder)[0] == "images"
    assert launched.requests == []
    assert cli("train", "resnet50", "--data.path", "images", "--model.num-classes", "5").code == 0


@pytest.mark.parametrize("flag", ["--print-config", "--dry-run"])
def test_what_only_prints_never_imports_torch(folder, flag):
    for split in ("train", "val"):
        for name in ("a", "b"):
            (folder / "images" / split / name).mkdir(parents=True)
            (folder / "images" / split / name / "1.png").write_bytes(b"looked at by the ranks")
    args = ["train", "resnet50", "--data.path", "images", flag]
    code = (
        f"import sys\nfrom drivetrain.cli.main import main\nassert main({args!r}) == 0\n"
        "print('torch' in sys.modules)"
    )
    # An absolute path: the child works in another folder.
    path = [str(Path(drivetrain.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=folder, env=environment
    )
    assert done.stdout.splitlines()[-1:] == ["False"], done.stderr
