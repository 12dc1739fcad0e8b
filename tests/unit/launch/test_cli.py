import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from drivetrain.cli.launch import command
from drivetrain.launch.binding import Binding
from drivetrain.spec.errors import InputError
from drivetrain.spec.unknown import Unknown


@dataclass(frozen=True)
class Found:
    count: int | Unknown
    reason: str = "seen"
    count_by_files: int | None = None


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch) -> dict[str, Found]:
    """What the hardware room would find; tests change it."""
    found = {"gpus": Found(0), "cpus": Found(8)}
    monkeypatch.setattr("drivetrain.hardware.gpus.visible_gpus", lambda environ: found["gpus"])
    monkeypatch.setattr("drivetrain.hardware.cpu.usable_cpus", lambda: found["cpus"])
    monkeypatch.setattr("drivetrain.launch.binding.bind", lambda *_, **__: Binding(lines=("bound",)))
    for name in ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return found


def run(*args: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(command, [*args], env=env, standalone_mode=False)


def dry(*args: str, env: dict[str, str] | None = None) -> str:
    result = run("--dry-run", "--no-python", *args, env=env)
    assert result.exception is None, result.exception
    return result.stdout


def refused(*args: str) -> str:
    error = run("--dry-run", *args).exception
    assert isinstance(error, (InputError, click.UsageError)), error
    return str(error)


pytestmark = pytest.mark.usefixtures("hardware")


@pytest.mark.parametrize(
    "flags",
    [
        (
            "--nproc-per-node",
            "2",
            "--nnodes",
            "3",
            "--node-rank=1",
            "--master-addr",
            "n0",
            "--master-port",
            "5",
        ),
        (
            "--nproc_per_node",
            "2",
            "--nnodes",
            "3",
            "--node_rank=1",
            "--master_addr",
            "n0",
            "--master_port",
            "5",
        ),
        ("-j", "3x2", "--node-rank=1", "--rdzv-backend=static", "--rdzv-endpoint", "n0:5"),
    ],
)
def test_dashes_underscores_and_the_short_form_mean_the_same(flags: tuple[str, ...]) -> None:
    text = dry(*flags, "train")
    assert "RANK=2 LOCAL_RANK=0 WORLD_SIZE=6 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=3" in text
    assert "MASTER_ADDR=n0 MASTER_PORT=5" in text


def test_kubeflows_variables_are_the_defaults_and_flags_win() -> None:
    env = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "3", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "pod-0"}
    text = dry("train", env=env)
    assert "RANK=3 LOCAL_RANK=0 WORLD_SIZE=6" in text
    assert "MASTER_ADDR=pod-0 MASTER_PORT=29500" in text
    assert "WORLD_SIZE=8" in dry("-j", "2x4", "train", env=env)
    assert "WORLD_SIZE=3" in dry("--standalone", "train", env=env)


def test_the_scripts_own_flags_are_not_ours() -> None:
    for separator in ((), ("--",)):
        assert "train --nnodes 7 -j x" in dry("-j", "1x1", *separator, "train", "--nnodes", "7", "-j", "x")


def test_scripts_modules_and_programs_are_run_as_asked(tmp_path: Path) -> None:
    script = tmp_path / "my script.py"
    script.write_text("")
    assert f"{sys.executable} -u '{script}' a" in run("--dry-run", "-j", "1x1", str(script), "a").stdout
    assert f"{sys.executable} -u -m my.module a" in run("--dry-run", "-j1x1", "-m", "my.module", "a").stdout
    assert " my.module a </dev/null" in dry("-j", "1x1", "my.module", "a")


def test_auto_takes_the_gpus_or_else_two_processes(hardware: dict[str, Found]) -> None:
    assert "WORLD_SIZE=2 " in dry("train")
    hardware["cpus"] = Found(1)
    assert "WORLD_SIZE=1 " in dry("train")
    hardware["gpus"] = Found(4)
    assert "WORLD_SIZE=4 " in dry("train")
    assert "WORLD_SIZE=4 " in dry("--nproc-per-node", "gpu", "train")
    hardware["cpus"] = Found(6)
    assert "WORLD_SIZE=6 " in dry("--nproc-per-node", "cpu", "train")


def test_an_unknown_number_of_gpus_is_not_taken_for_none(hardware: dict[str, Found]) -> None:
    hardware["gpus"] = Found(Unknown("NVML failed"), reason="NVML failed")
    assert "unknown: NVML failed" in refused("--no-python", "train")
    hardware["gpus"] = Found(Unknown("NVML failed"), count_by_files=3)
    assert "WORLD_SIZE=3 " in dry("train")


def test_threads_are_set_with_the_reason_unless_the_user_has() -> None:
    result = run("--dry-run", "--no-python", "-j", "1x2", "train")
    assert "OMP_NUM_THREADS=4 " in result.stdout
    assert "OMP_NUM_THREADS=4 for each rank: 8 usable CPUs (seen)" in result.stderr
    assert "OMP_NUM_THREADS" not in dry("-j", "1x2", "train", env={"OMP_NUM_THREADS": "7"})
    assert "OMP_NUM_THREADS=5 " in dry("-j", "1x2", "--env", "OMP_NUM_THREADS=5", "train")


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (("-j", "2x8", "--nnodes", "2", "x"), "both say the same"),
        (("-j", "2x8", "--nproc-per-node", "8", "x"), "both say the same"),
        (("-j", "2*8", "x"), "NODESxPROCESSES"),
        (("--nnodes", "two", "x"), "MIN:MAX"),
        (("--nproc-per-node", "all", "x"), "no number"),
        (("--nproc-per-node", "gpu", "x"), "no GPU is visible"),
        (("-j1x1", "--no-python", "-m", "x"), "needs python"),
        (("-j1x1", "no_such.py"), "no such file"),
        (("-j1x1", "--env", "NOVALUE", "--no-python", "x"), "NAME=VALUE"),
        (("-j2x1", "--rdzv-backend", "c10d", "--no-python", "x"), "--rdzv-endpoint is missing"),
        (("-j2x1", "--no-python", "x"), "where they meet"),
        (("--rdzv-backend", "etcd", "x"), "etcd"),
        (("--nproc-per-nod", "1", "x"), "No such option"),
    ],
)
def test_a_mistake_is_refused_with_its_reason(args: tuple[str, ...], found: str) -> None:
    assert found in refused(*args)


def test_a_dry_run_creates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dry("train")
    assert list(tmp_path.iterdir()) == []


def test_the_default_folder_is_named_after_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "/runs/my-model-" in dry("-j1x1", "dir/my model.py")


def test_one_machine_with_a_rendezvous_needs_none() -> None:
    text: Any = dry("--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "train")
    assert "local rendezvous" in text


def test_what_was_bound_is_said_unless_it_is_turned_off() -> None:
    assert "bound" in run("--dry-run", "--no-python", "true").stderr.splitlines()
    assert "bound" not in run("--dry-run", "--no-bind", "--no-python", "true").stderr.splitlines()
