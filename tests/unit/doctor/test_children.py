"""What may crash or hang runs in processes of its own, and how they end is an answer."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from drivetrain.doctor.child import run_child
from drivetrain.doctor.facts import Driver, Gpu
from drivetrain.doctor.probe_children import (
    decode,
    measure_storage,
    read_nvml,
    read_own_addresses,
    read_torch,
    try_frameworks,
)
from drivetrain.spec.unknown import Unknown

SEGFAULT = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
HANG = "import time\ntime.sleep(600)\n"
NO_DRIVER = "raise ImportError('libcuda.so.1: cannot open shared object file: No such file or directory')\n"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """`packages(name=source)` puts packages where children, and find_spec here, find them first."""

    def packages(**sources) -> dict[str, str]:
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}

    return packages


def test_a_crash_a_hang_and_a_missing_library_are_told_apart(packages):
    environ = packages(deepspeed=SEGFAULT, timm=HANG, wandb=NO_DRIVER, horovod="", fine="")
    names = ("deepspeed", "timm", "wandb", "fine", "surely_absent")
    start = time.monotonic()
    found = {item.name: item for item in try_frameworks(names, environ, timeout_s=3.0)}
    assert time.monotonic() - start < 20
    assert (found["deepspeed"].outcome, found["deepspeed"].detail) == ("crashed", "signal 11 (SIGSEGV)")
    assert found["timm"].outcome == "hung"
    assert (found["wandb"].outcome, "libcuda.so.1" in found["wandb"].detail) == ("error", True)
    assert found["fine"].outcome == "ok"
    assert found["surely_absent"].outcome == "absent"


def test_a_torch_that_crashes_or_fails_is_a_fact_not_an_accident(packages):
    reading = read_torch(packages(torch=SEGFAULT), timeout_s=20)
    assert "SIGSEGV" in reading.torch.import_error
    assert isinstance(reading.torch.cuda, Unknown)
    reading = read_torch(packages(torch=NO_DRIVER), timeout_s=20)
    assert "libcuda.so.1" in reading.torch.import_error


def test_an_nvml_that_hangs_is_the_drivers_trouble(packages):
    reading = read_nvml(packages(pynvml=HANG), timeout_s=1.0)
    assert "was not done after" in reading.driver.trouble
    assert isinstance(reading.gpus, Unknown)


def test_what_a_child_started_ends_with_it(tmp_path):
    file = tmp_path / "pid"
    code = (
        f"import subprocess, time\np = subprocess.Popen(['sleep', '600'])\nopen({str(file)!r},"
        " 'w').write(str(p.pid))\ntime.sleep(600)"
    )
    ended = run_child(["-c", code], timeout_s=1.5)
    assert ended.outcome == "hung"
    deadline = time.monotonic() + 5
    while _is_alive(int(file.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_alive(int(file.read_text()))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_answer_gets_past_what_libraries_print():
    code = "print('noise'); from drivetrain.doctor.child import answer; answer({'x': 1}); print('more')"
    ended = run_child(["-c", code], timeout_s=20)
    assert (ended.outcome, ended.answer) == ("ok", {"x": 1})


def test_storage_is_measured_and_left_clean(tmp_path):
    storage = measure_storage(tmp_path, os.environ)
    assert storage.write_bytes_per_s > 0
    assert storage.read_bytes_per_s > 0
    assert storage.free_bytes > 0
    assert list(tmp_path.iterdir()) == []
    absent = measure_storage(tmp_path / "absent", os.environ)
    assert isinstance(absent.write_bytes_per_s, Unknown)


def test_the_own_name_is_looked_up():
    assert not isinstance(read_own_addresses(os.environ), str)


def test_json_of_children_becomes_facts_again():
    gpu = decode(Gpu, {"index": 0, "name": {"unknown": "why"}, "throttle_reasons": ["power cap"], "later": 1})
    assert gpu == Gpu(index=0, name=Unknown("why"), throttle_reasons=("power cap",))
    assert decode(Driver, {"version": {"unknown": "nothing that was read tells it"}}) == Driver()
