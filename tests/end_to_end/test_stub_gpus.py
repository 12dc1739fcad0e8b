"""Machines of eight GPUs, some not well: topo, gpus and doctor through nvidia-ml-py and a compiled NVML."""

import json

import pytest

from drivetrain.spec.exit_codes import ExitCode

# Two islands of four, as a DGX Station's and many servers' NVLink bridges make them.
ISLANDS = "pair.*.ancestor = SYS\n" + "".join(
    f"gpu{gpu}.nvlinks = "
    + " ".join(
        f"{4 * at}-{4 * at + 3}:gpu{peer}"
        for at, peer in enumerate(p for p in range(4 * (gpu // 4), 4 * (gpu // 4) + 4) if p != gpu)
    )
    + "\n"
    for gpu in range(8)
)
UNWELL = """
gpu1.ecc_uncorrected_volatile = 4
gpu2.persistence = 0
gpu3.throttle_reasons = 0x40
gpu4.temperature = na
gpu5.mig = 1
gpu5.mig_device = MIG-11111111-2222-3333-4444-555555555555
gpu6.error = 15
"""


@pytest.fixture
def on_stub(shell, nvml_stub):
    def run(*words, config=""):
        nvml_stub.write(config)
        return shell("drivetrain", *words, **nvml_stub.environment())

    return run


def test_the_best_sets_lie_within_an_island(on_stub):
    done = on_stub("topo", "--json", "-k", 2, "-k", 4, config=ISLANDS)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["gpus"] == list(range(8))
    assert found["islands"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert found["best"]["4"] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_gpu_that_is_lost_hides_neither_itself_nor_the_others(on_stub):
    listed = on_stub("gpus", "list", "--json", config=UNWELL)
    assert listed.code == 0, listed.err
    assert len(json.loads(listed.out)["gpus"]) == 8

    done = on_stub("doctor", "--quick", "--json", config=UNWELL)
    assert done.code == ExitCode.DOCTOR, done.err
    checks = {check["id"]: check for check in json.loads(done.out)["checks"]}
    assert checks["ecc"]["status"] == "fail"
    assert "1" in checks["ecc"]["found"]
    assert checks["gpu_answers"]["status"] == "fail"
    assert "6" in checks["gpu_answers"]["found"]
    assert checks["mig"]["status"] != "pass"
    assert checks["persistence"]["status"] != "pass"
