"""Sinks hold what they were given, through growth, resume and failure."""

from __future__ import annotations

import csv
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from drivetrain.spec.errors import InputError
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.sinks import table
from drivetrain.telemetry.sinks.csv import CsvSink
from drivetrain.telemetry.sinks.table import SinkRequest, open_sinks


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_columns_grow_without_touching_what_stands(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    sink = CsvSink(path)
    sink.scalars(1, {"train/loss": 0.5})
    sink.scalars(2, {"eval/accuracy": 0.25, 'odd, "name"': float("inf")})
    sink.scalars(3, {"train/loss": float("nan")})
    sink.close()
    assert rows(path) == [
        {"step": "1", "train/loss": "0.5", "eval/accuracy": "", 'odd, "name"': ""},
        {"step": "2", "train/loss": "", "eval/accuracy": "0.25", 'odd, "name"': "inf"},
        {"step": "3", "train/loss": "nan", "eval/accuracy": "", 'odd, "name"': ""},
    ]


def test_csv_rows_are_on_the_disk_before_close(tmp_path: Path) -> None:
    sink = CsvSink(tmp_path / "metrics.csv")
    sink.scalars(1, {"loss": 0.5})
    assert rows(tmp_path / "metrics.csv") == [{"step": "1", "loss": "0.5"}]
    sink.close()


def test_csv_resume_supersedes_the_rows_after_the_resumed_step_and_drops_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    sink = CsvSink(path)
    for step in range(1, 6):
        sink.scalars(step, {"loss": float(step)})
    sink.close()
    with path.open("a") as file:
        file.write("6,0.")
    resumed = CsvSink(path, start_step=3)
    resumed.scalars(4, {"loss": 40.0, "lr": 0.1})
    resumed.close()
    assert [(row["step"], row["loss"], row["lr"]) for row in rows(path)] == [
        ("1", "1.0", ""),
        ("2", "2.0", ""),
        ("3", "3.0", ""),
        ("4", "40.0", "0.1"),
    ]
    assert [item.name for item in tmp_path.iterdir()] == ["metrics.csv"]


def test_csv_keeps_one_row_a_step_in_order_whatever_the_order_of_calls(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    sink = CsvSink(path)
    # An evaluation is told at once, the training values of the steps before it some steps later.
    sink.scalars(1, {"train/loss": 1.0})
    sink.scalars(4, {"eval/loss": 0.4})
    for step in range(2, 7):
        sink.scalars(step, {"train/loss": 1.0 / step})
    assert [(row["step"], row["train/loss"], row["eval/loss"]) for row in rows(path)] == [
        ("1", "1.0", ""),
        ("2", "0.5", ""),
        ("3", repr(1 / 3), ""),
        ("4", "0.25", "0.4"),
        ("5", "0.2", ""),
        ("6", repr(1 / 6), ""),
    ]
    sink.scalars(6, {"train/loss": 7.0})  # told again, and shorter
    sink.close()
    assert rows(path)[-1] == {"step": "6", "train/loss": "7.0", "eval/loss": ""}


def test_csv_stays_in_order_over_any_distance(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    sink = CsvSink(path)
    expected: dict[int, dict[str, float]] = {}
    far_back = random.Random(0).sample(range(1000), 12)
    steps = [*range(0, 1600, 2), *far_back, *range(1600, 2300), 2250, 1599]
    for number, step in enumerate(steps):
        name = f"m{number % 3}"
        expected.setdefault(step, {})[name] = float(number)
        sink.scalars(step, {name: float(number)})
    sink.close()
    found = rows(path)
    assert [int(row.pop("step")) for row in found] == sorted(expected)
    as_numbers = [{name: float(cell) for name, cell in row.items() if cell} for row in found]
    assert as_numbers == [expected[step] for step in sorted(expected)]


def test_csv_of_a_finished_run_that_is_started_again_has_its_last_evaluation_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    for start_step in (0, 2):
        sink = CsvSink(path, start_step=start_step)
        for step in range(start_step + 1, 3):
            sink.scalars(step, {"train/loss": 1.0})
        sink.scalars(2, {"eval/loss": 0.5})
        sink.close()
    assert [(row["step"], row["train/loss"], row["eval/loss"]) for row in rows(path)] == [
        ("1", "1.0", ""),
        ("2", "1.0", "0.5"),
    ]


def test_csv_takes_the_two_rows_of_a_step_of_an_older_file_together(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,eval/loss,train/loss\n1,0.5,\n1,,0.6\n2,,0.7\n")
    CsvSink(path, start_step=2).close()
    assert path.read_text() == "step,eval/loss,train/loss\n1,0.5,0.6\n2,,0.7\n"


def test_csv_refuses_a_metric_named_like_its_own_column(tmp_path: Path) -> None:
    sink = CsvSink(tmp_path / "metrics.csv")
    with pytest.raises(ValueError, match="step"):
        sink.scalars(1, {"step": 1.0})
    sink.close()


def test_an_unknown_sink_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="use tensorboard"):
        open_sinks(["tensorbord"], SinkRequest(run_dir=RunDir(tmp_path)))


class Breaking:
    """Fails at its second scalar."""

    def __init__(self) -> None:
        self.calls = 0

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.calls += 1
        if self.calls == 2:
            raise OSError(28, "No space left on device")

    def text(self, step: int, name: str, text: str) -> None: ...

    def close(self) -> None: ...


def test_a_failing_sink_is_said_once_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Breaking()
    monkeypatch.setitem(table.SINKS, "breaking", "breaking_sink_module")
    monkeypatch.setitem(
        sys.modules, "breaking_sink_module", SimpleNamespace(open_sink=lambda request: broken)
    )
    warned: list[str] = []
    sinks = open_sinks(["breaking", "csv"], SinkRequest(run_dir=RunDir(tmp_path)), on_warning=warned.append)
    for step in range(1, 5):
        sinks.scalars(step, {"loss": 1.0})
    assert sinks.names == ("csv",)
    sinks.close()
    sinks.close()
    assert broken.calls == 2
    assert len(warned) == 1
    assert "breaking failed" in warned[0]
    assert "No space left on device" in warned[0]
    assert len(rows(tmp_path / "metrics.csv")) == 4


def test_a_sink_that_cannot_open_is_left_out_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").mkdir()
    warned: list[str] = []
    sinks = open_sinks(["csv"], SinkRequest(run_dir=RunDir(tmp_path)), on_warning=warned.append)
    assert sinks.names == ()
    assert "csv could not be opened" in warned[0]


def test_the_table_and_the_csv_sink_import_nothing_heavy() -> None:
    code = (
        "import sys, drivetrain.telemetry.sinks.csv, drivetrain.telemetry.sinks.wandb, "
        "drivetrain.telemetry.sinks.tensorboard; "
        "assert not {'torch', 'wandb', 'tensorboard'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_tensorboard_shows_scalars_and_hides_what_a_resume_supersedes(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run_dir = RunDir(tmp_path)
    first = open_sinks(["tensorboard"], SinkRequest(run_dir=run_dir))
    for step in (1, 2, 3):
        first.scalars(step, {"loss": float(step)})
    first.text(1, "notes", "precision auto")
    first.close()
    second = open_sinks(["tensorboard"], SinkRequest(run_dir=run_dir, start_step=2))
    second.scalars(3, {"loss": 30.0})
    second.close()
    found = event_accumulator.EventAccumulator(str(run_dir.tensorboard))
    found.Reload()
    assert [(item.step, item.value) for item in found.Scalars("loss")] == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_wandb_that_is_not_installed_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"pip install 'drivetrain\[wandb\]'"):
        open_sinks(["wandb"], SinkRequest(run_dir=RunDir(tmp_path)))


_OFFLINE = """
import json, sys
from pathlib import Path
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.sinks.table import SinkRequest, open_sinks
for start in (0, 2):
    request = SinkRequest(run_dir=RunDir(Path(sys.argv[1])), start_step=start, config={"lr": 0.1})
    sinks = open_sinks(["wandb"], request, on_warning=lambda text: sys.exit(text))
    for step in range(start + 1, start + 4):
        sinks.scalars(step, {"loss": 1.0 / step})
    sinks.text(start, "notes", "hello")
    sinks.close()
"""


def test_wandb_offline_writes_its_files_and_a_resume_keeps_the_run_id(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is an extra")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _OFFLINE, str(tmp_path)],
        timeout=100,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    run_id = (tmp_path / "wandb-run-id").read_text().strip()
    files = sorted((tmp_path / "wandb").rglob("*.wandb"))
    assert len(files) == 2, "one file a start"
    assert {file.stem for file in files} == {f"run-{run_id}"}
    assert all(b"loss" in file.read_bytes() for file in files)
