"""What changed since a run."""

from __future__ import annotations

import pytest

from drivetrain._version import __version__
from drivetrain.doctor.against import compare, read_run
from drivetrain.doctor.facts import Driver, Gpu, NodeFacts, Python, Torch
from drivetrain.spec.errors import InputError
from drivetrain.telemetry.events import Header, RunStarted
from drivetrain.telemetry.writer import EventWriter


@pytest.fixture
def run(tmp_path):
    def run(**changes):
        (tmp_path / "config.yaml").write_text("# drivetrain 0.0.9, torch 2.9.1, Python 3.11.2\nname: x\n")
        header = Header(rank=0, world_size=2, local_rank=0, host="old", pid=1, started_wall_s=1.0)
        writer = EventWriter(tmp_path / "events" / "rank-00000.jsonl", header)
        values = {
            "name": "x",
            "strategy": "ddp",
            "devices": ("cuda:0 NVIDIA L4", "cuda:1 NVIDIA L4"),
            "precision": "fp32",
            "total_steps": 1,
            "num_samples": 1,
            "global_batch": 1,
            "accumulation": 1,
            "micro_batch": 1,
            "world_size": 2,
            **changes,
        }
        writer.write(RunStarted(**values))
        writer.close()
        return read_run(tmp_path)

    return run


NOW = NodeFacts(
    node="n",
    torch=Torch(version="2.9.1+cu128", cuda="12.8", nccl="2.27.5", cudnn=""),
    python=Python(version="3.11.9", numpy="2.1.0"),
    driver=Driver(kernel_module="580.95.05"),
    gpus=(Gpu(index=0, name="NVIDIA L4"),),
)


def test_changes_are_named_and_what_was_not_recorded_is_not_checked(run):
    record = run(versions={"torch": "2.9.1+cu128", "nccl": "2.21.5", "driver": "580.95.05", "cudnn": ""})
    found = {item.id: item for item in compare(record, NOW)}
    assert (found["since_torch"].status, found["since_driver"].status) == ("pass", "pass")
    assert (found["since_cudnn"].status, found["since_cuda"].status) == ("pass", "not_checked")
    assert found["since_nccl"].found == "2.27.5 now, 2.21.5 in that run"
    assert found["since_python"].status == "warn"
    assert (found["since_drivetrain"].status, __version__ in found["since_drivetrain"].found) == (
        "warn",
        True,
    )
    assert found["since_gpus"].found == "1 × NVIDIA L4 here; that run used 2 × NVIDIA L4"


def test_an_older_run_without_versions_in_its_events_still_tells_those_of_its_config(run):
    record = run()
    assert (record.versions["torch"], record.versions["drivetrain"]) == ("2.9.1", "0.0.9")
    assert {item.id: item.status for item in compare(record, NOW)}["since_torch"] == "pass"


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="no record"):
        read_run(tmp_path)
