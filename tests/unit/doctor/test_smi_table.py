"""`nvidia-smi`'s table of every age, and what it prints instead of one."""

from __future__ import annotations

import pytest
from doctor_captures import MISMATCH, SMI_580, SMI_NARROW, SMI_WIDE

from drivetrain.spec.unknown import Unknown


def test_the_narrow_table_has_no_cuda_version_and_that_is_said(facts_of):
    facts = facts_of(SMI_NARROW)
    assert facts.driver.version == "375.66"
    assert facts.driver.max_cuda_shown == Unknown("this nvidia-smi prints no CUDA version")
    assert [gpu.name for gpu in facts.gpus] == ["Tesla P100-SXM2..."] * 2
    assert [gpu.compute_mode for gpu in facts.gpus] == ["exclusive_thread", "exclusive_process"]
    assert [gpu.power_w for gpu in facts.gpus] == [31, 52]
    assert isinstance(facts.gpus[0].mig, Unknown)
    assert [(item.pid, item.name, item.memory_mib) for item in facts.gpu_processes] == [
        (40211, "python3", 901)
    ]


def test_the_wide_table_with_mig_and_a_gpu_that_does_not_answer(facts_of):
    facts = facts_of(SMI_WIDE)
    assert (facts.node, facts.driver.version, facts.driver.max_cuda_shown) == ("blue7", "535.104.05", "12.2")
    assert [gpu.mig for gpu in facts.gpus[:3]] == [False, True, False]
    assert facts.gpus[1].num_mig_instances == 1
    assert [gpu.ecc_uncorrected_volatile for gpu in facts.gpus[:3:2]] == [0, 3]
    assert isinstance(facts.gpus[1].utilization_percent, Unknown)
    lost = facts.gpus[3]
    assert "name: ERR!" in lost.errors
    assert "temp: ERR!" in lost.errors
    assert isinstance(lost.memory_used_mib, Unknown)
    assert facts.gpu_processes[0].gpu == 2


def test_ecc_off_is_told_apart_from_no_errors(facts_of):
    facts = facts_of(SMI_580)
    assert [gpu.ecc for gpu in facts.gpus] == [True, False]
    assert isinstance(facts.gpus[1].ecc_uncorrected_volatile, Unknown)
    assert facts.gpu_processes == ()


def test_rows_without_their_head_are_read_and_the_driver_stays_unknown(facts_of):
    facts = facts_of("\n".join(SMI_WIDE.splitlines()[10:14]))
    assert len(facts.gpus) == 1
    assert isinstance(facts.driver.version, Unknown)
    assert isinstance(facts.gpu_processes, Unknown)


@pytest.mark.parametrize(
    "text, trouble, version",
    [
        (MISMATCH, "Driver/library version mismatch", "535.161"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "couldn't", None),
        ("Failed to initialize NVML: Unknown Error", "Unknown Error", None),
        ("No devices were found", "No devices", None),
        ("bash: nvidia-smi: command not found", "not found", None),
    ],
)
def test_an_error_instead_of_the_table_is_the_drivers_trouble(facts_of, text, trouble, version):
    facts = facts_of(text)
    assert trouble in facts.driver.trouble
    assert version is None or facts.driver.version == version


def test_a_gpu_without_a_handle_is_an_error_of_that_gpu(facts_of):
    text = (
        "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system to"
        " recover this GPU"
    )
    (gpu,) = facts_of(text).gpus
    assert gpu.bus_id == "0000:02:00.0"
    assert "lost" in gpu.errors[0]


def test_the_list_of_names_counts_mig_instances(facts_of):
    text = (
        "GPU 0: NVIDIA A100-PCIE-40GB (UUID: GPU-11112222-aaaa-bbbb-cccc-000000000001)\n"
        "  MIG 3g.20gb     Device  0: (UUID: MIG-99999999-aaaa-bbbb-cccc-000000000001)\n"
        "  MIG 3g.20gb     Device  1: (UUID: MIG-99999999-aaaa-bbbb-cccc-000000000002)\n"
    )
    (gpu,) = facts_of(text).gpus
    assert (gpu.name, gpu.mig, gpu.num_mig_instances) == ("NVIDIA A100-PCIE-40GB", True, 2)
