"""`drivetrain doctor` through the command line, on this machine and on a paste."""

from __future__ import annotations

import json
import time

PASTE = """\
Infiniband device 'mlx5_0' port 1 status:
        default gid:     fe80:0000:0000:0000:0a0b:0cff:fe0d:0e0f
        sm lid:          0x0
        state:           1: DOWN
        phys state:      2: Polling
        rate:            10 Gb/sec (4X SDR)
        link_layer:      InfiniBand
"""


def test_this_machine_is_looked_at_quickly_and_nothing_fails_without_a_gpu(shell, tmp_path):
    start = time.monotonic()
    done = shell("drivetrain", "doctor", "--quick", "--json")
    assert time.monotonic() - start < 60
    value = json.loads(done.out)
    status = {item["id"]: item["status"] for item in value["checks"]}
    failed = [item for item in value["checks"] if item["status"] == "fail"]
    assert done.code == (3 if failed else 0), done.err
    assert status["torch_imports"] == "pass"
    assert status["matmul"] == "not_checked"
    (facts,) = value["facts"].values()
    assert facts["torch"]["version"]
    assert list(tmp_path.iterdir()) == []


def test_the_whole_doctor_tries_the_machine_out(shell):
    done = shell("drivetrain", "doctor", "-v", timeout_s=240)
    assert done.code in (0, 3), done.err
    assert "the sum is right" in done.out
    assert "first batch of two workers" in done.out
    assert "FAIL  matmul" not in done.out


def test_a_paste_fails_with_3_and_a_usage_mistake_with_2(shell, tmp_path):
    file = tmp_path / "ib.txt"
    file.write_text(PASTE)
    done = shell("drivetrain", "doctor", "--from", file, file)
    assert done.code == 3
    assert "no cable, or the switch's port is dead" in " ".join(done.out.split())
    assert "repair:" in done.out
    for args in (
        ["--from", tmp_path / "absent"],
        [file],
        ["--against", tmp_path],
        ["--data", tmp_path / "absent"],
    ):
        refused = shell("drivetrain", "doctor", *args)
        assert (refused.code, "Traceback" in refused.err) == (2, False), refused.err
