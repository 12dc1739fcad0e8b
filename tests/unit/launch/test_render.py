import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.launch.render import render_command
from drivetrain.spec.errors import InputError
from drivetrain.spec.job import LaunchRequest

HOSTILE = [
    "a b",
    "it's",
    'say "x"',
    "line\nbreak",
    "$(touch pwned)",
    "`id`",
    "*",
    "",
    "-x",
    "\\",
    "ü",
    "a;b&c|d",
]
DUMP = "import json,os,sys; json.dump([sys.argv[1:], dict(os.environ)], sys.stdout)"


def run_rendered(text: str, folder: Path, **variables: str) -> None:
    environ = {"PATH": os.environ["PATH"], **variables}
    result = subprocess.run(
        ["sh"], input=text, text=True, env=environ, cwd=folder, timeout=30, capture_output=True
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_what_it_renders_runs_as_it_is_whatever_the_names(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s a $(run)\n"folder"'
    (folder / "logs").mkdir(parents=True)
    request = LaunchRequest(
        command=(sys.executable, "-c", DUMP, *HOSTILE),
        folder=folder,
        nproc_per_node=2,
        environment={"GREETING": "it's $(hostile)\n", "OMP_NUM_THREADS": "1"},
    )
    run_rendered(render_command(request), tmp_path, MASTER_PORT="1234", TORCHELASTIC_RUN_ID="x")
    for rank in range(2):
        arguments, environ = json.loads((folder / "logs" / f"rank-{rank:05d}.log").read_text())
        assert arguments == HOSTILE
        assert environ["GREETING"] == "it's $(hostile)\n"
        assert (environ["RANK"], environ["WORLD_SIZE"], environ["MASTER_PORT"]) == (str(rank), "2", "1234")
        assert environ["TORCHELASTIC_ERROR_FILE"].startswith(str(folder))
    assert not (tmp_path / "pwned").exists()


def test_ranks_that_only_the_rendezvous_knows_are_shell_variables(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    request = LaunchRequest(
        command=(sys.executable, "-c", DUMP),
        folder=tmp_path,
        nproc_per_node=2,
        min_nodes=1,
        max_nodes=4,
        rdzv_endpoint="node0:29400",
    )
    text = render_command(request)
    values = {"MASTER_ADDR": "node3", "MASTER_PORT": "5", "GROUP_RANK": "3", "GROUP_WORLD_SIZE": "4"}
    run_rendered(text, tmp_path, **values, WORLD_SIZE="8", DRIVETRAIN_FIRST_RANK="6")
    _, environ = json.loads((tmp_path / "logs" / "rank-00007.log").read_text())
    assert (environ["RANK"], environ["LOCAL_RANK"], environ["MASTER_ADDR"]) == ("7", "1", "node3")
    assert environ["TORCHELASTIC_ERROR_FILE"].endswith("rank-00007.json")


def test_static_machines_number_their_ranks(tmp_path: Path) -> None:
    request = LaunchRequest(
        command=("train",),
        folder=tmp_path,
        nproc_per_node=2,
        min_nodes=3,
        max_nodes=3,
        node_rank=1,
        master_addr="n0",
    )
    text = render_command(request)
    assert "RANK=2 " in text
    assert "RANK=3 " in text
    assert "WORLD_SIZE=6 " in text
    assert "MASTER_ADDR=n0 MASTER_PORT=29500 " in text


def test_secrets_are_masked_only_for_the_file(tmp_path: Path) -> None:
    request = LaunchRequest(
        command=("train",), folder=tmp_path, environment={"WANDB_API_KEY": "s3cret", "NCCL_DEBUG": "INFO"}
    )
    masked = render_command(request, hide_secrets=True)
    assert "s3cret" not in masked
    assert "NCCL_DEBUG=INFO" in masked
    assert "WANDB_API_KEY=s3cret" in render_command(request)


def test_an_impossible_request_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to run"):
        render_command(LaunchRequest(command=(), folder=tmp_path))


def test_the_room_imports_no_torch() -> None:
    code = (
        "import sys; import drivetrain.launch.torchrun, drivetrain.launch.describe, drivetrain.cli.launch; "
        "sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0
