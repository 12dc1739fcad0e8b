"""What auto becomes, and what is refused before a process starts."""

from __future__ import annotations

import pytest

from drivetrain.config.resolve import Resources, resolve
from drivetrain.config.schema import RunConfig
from drivetrain.spec.errors import InputError
from drivetrain.spec.unknown import Unknown


def settle(num_gpus=0, num_cpus=8, num_gpus_by_files=None, **fields):
    resources = Resources(
        num_gpus=num_gpus,
        gpu_reason="gpu reason",
        num_cpus=num_cpus,
        cpu_reason="cpu reason",
        num_gpus_by_files=num_gpus_by_files,
    )
    resolved = resolve(RunConfig.model_validate({"task": "a.py:b", **fields}), resources)
    return resolved.device, resolved.nproc_per_node


def launch(nproc):
    return {"launch": {"nproc_per_node": nproc}}


def test_auto_is_one_process_a_gpu_or_up_to_two_on_the_cpu():
    assert settle(num_gpus=4) == ("cuda", 4)
    assert settle() == ("cpu", 2)
    assert settle(num_cpus=1) == ("cpu", 1)


def test_what_is_asked_for_is_taken():
    assert settle(num_gpus=4, **launch(3)) == ("cuda", 3)
    assert settle(num_gpus=4, device="cpu") == ("cpu", 2)
    assert settle(num_gpus=4, **launch("cpu")) == ("cpu", 8)
    assert settle(num_gpus=4, **launch("gpu")) == ("cuda", 4)
    assert settle(num_gpus=4, strategy="single") == ("cuda", 1)
    assert settle(num_gpus=4, strategy="data_parallel") == ("cuda", 1)
    assert settle(strategy="single") == ("cpu", 1)
    assert settle(**launch(5)) == ("cpu", 5)


@pytest.mark.parametrize(
    "fields, wanted",
    [
        ({"device": "cuda"}, "no GPU is visible: gpu reason"),
        (launch("gpu"), "no GPU is visible: gpu reason"),
        ({"num_gpus": 2, "device": "cuda", **launch(3)}, "2 visible"),
        ({"num_gpus": 2, **launch(3)}, "2 visible"),
        ({"num_gpus": 2, "device": "cuda", **launch("cpu")}, "device is cuda"),
        ({"num_gpus": Unknown("NVML broke")}, "NVML broke"),
    ],
)
def test_what_cannot_be_given_is_refused(fields, wanted):
    with pytest.raises(InputError, match=wanted):
        settle(**fields)


def test_an_unread_gpu_count_falls_back_on_device_files_and_says_so():
    assert settle(num_gpus=Unknown("NVML broke"), num_gpus_by_files=2) == ("cuda", 2)
    assert settle(num_gpus=Unknown("NVML broke"), device="cpu") == ("cpu", 2)
