import dataclasses
from pathlib import Path

import pytest

from drivetrain.launch.record import open_record
from drivetrain.spec.errors import InputError
from drivetrain.spec.job import LaunchRequest
from drivetrain.spec.outcome import Outcome

OUTCOME = Outcome(exit_code=0, world_size=1, restarts=0, started_wall_s=1.0, ended_wall_s=2.0, command=("a",))


def test_it_writes_the_command_and_removes_an_old_outcome(tmp_path: Path) -> None:
    request = LaunchRequest(
        command=("train", "a b"), folder=tmp_path / "run", environment={"MY_TOKEN": "s3cret"}
    )
    record = open_record(request)
    record.write_outcome(OUTCOME, 0)
    assert Outcome.from_json((tmp_path / "run/launch/outcome.json").read_text()) == OUTCOME
    open_record(request)
    assert not (tmp_path / "run/launch/outcome.json").exists()
    command = (tmp_path / "run/launch/command.txt").read_text()
    assert "train 'a b'" in command
    assert "s3cret" not in command
    assert [path.name for path in (tmp_path / "run/launch").iterdir() if path.name.startswith(".")] == []


def test_machines_that_share_a_folder_do_not_overwrite_each_other(tmp_path: Path) -> None:
    static = LaunchRequest(
        command=("a",), folder=tmp_path, min_nodes=2, max_nodes=2, node_rank=0, master_addr="n0"
    )
    other = dataclasses.replace(static, node_rank=1)
    elastic = dataclasses.replace(static, node_rank=None, rdzv_endpoint="n0:1")
    paths = [open_record(static).write_outcome(OUTCOME, 0), open_record(other).write_outcome(OUTCOME, 1)]
    paths += [open_record(elastic).write_outcome(OUTCOME, node_rank) for node_rank in (2, None)]
    names = [path.name for path in paths]
    assert names[:3] == ["outcome.json", "outcome-node-00001.json", "outcome-node-00002.json"]
    assert len(set(names)) == 4
    assert (tmp_path / "launch/command.txt").exists()
    assert (tmp_path / "launch/command-node-00001.txt").exists()


def test_a_folder_that_cannot_be_made_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written") as caught:
        open_record(LaunchRequest(command=("a",), folder=tmp_path / "file" / "run"))
    assert "--output" in caught.value.do
