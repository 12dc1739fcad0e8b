"""What is said of GPUs: health, settings, links."""

from __future__ import annotations

import dataclasses

import pytest
from doctor_captures import MISMATCH, SMI_580, SMI_NARROW, SMI_QUERY, SMI_WIDE

from drivetrain.doctor.facts import Gpu, Host, NodeFacts, Torch
from drivetrain.spec.unknown import Unknown


def facts_with(*gpus, **changes):
    return NodeFacts(node="n", gpus=gpus, **changes)


SPINNING = Gpu(index=0, utilization_percent=100, power_w=60.0, power_limit_w=400.0, memory_used_mib=900)
WORKING = Gpu(index=1, utilization_percent=100, power_w=330.0, power_limit_w=400.0, memory_used_mib=900)


@pytest.mark.parametrize(
    "text, name, status, words",
    [
        (SMI_WIDE, "gpu_answers", "fail", "GPU 3: name: ERR!"),
        (SMI_WIDE, "ecc", "fail", "GPU 2: 3 uncorrected"),
        (SMI_WIDE, "mig", "warn", "GPU 1: MIG is on"),
        (SMI_WIDE, "gpu_in_use", "warn", "/opt/conda/bin/python (pid 1234567)"),
        (SMI_WIDE, "persistence", "not_checked", "GPU 3"),
        (SMI_NARROW, "compute_mode", "fail", "GPU 0: compute mode exclusive, one thread (E. Thread)"),
        (SMI_NARROW, "gpu_hung", "warn", "GPU 1: 100 % at 52 W of 300 W"),
        (SMI_NARROW, "mig", "not_checked", "nothing that was read"),
        (SMI_580, "gpu_hung", "fail", "GPU 0: 100 % although no process is on it"),
        (SMI_580, "gpu_in_use", "warn", "no process is shown on GPU 0"),
        (SMI_580, "temperature", "warn", "GPU 0: 92 °C"),
        (SMI_580, "persistence", "warn", "GPU 0, 1: persistence mode off"),
        (SMI_QUERY, "ecc", "fail", "3 uncorrected"),
        (SMI_QUERY, "row_remap", "fail", "waits for a reset"),
        (SMI_QUERY, "gpu_reset_required", "fail", "asks for a reset"),
        (SMI_QUERY, "throttle", "fail", "hardware thermal slowdown"),
        (SMI_QUERY, "power_cap", "warn", "150 W of 250 W"),
        (SMI_QUERY, "pcie", "fail", "x8 of x16"),
        (SMI_QUERY, "compute_mode", "fail", "prohibited"),
        (MISMATCH, "xid", "fail", "Xid 79 on 0000:9C:00 (GPU has fallen off the bus), 2 times"),
    ],
)
def test_a_paste_is_judged(findings_of, text, name, status, words):
    finding = next(item for (_, check), item in findings_of(text).items() if check == name)
    assert finding.status == status
    assert words in finding.found
    assert finding.fix or status == "not_checked"


def test_use_without_power_is_a_hang_and_use_with_power_is_work(check):
    assert check("gpu_hung", facts_with(SPINNING, dataclasses.replace(SPINNING, index=1))).status == "fail"
    assert check("gpu_hung", facts_with(SPINNING, WORKING)).status == "warn"
    assert check("gpu_hung", facts_with(WORKING)).status == "pass"
    assert check("gpu_hung", facts_with(Gpu(index=0, utilization_percent=100))).status == "not_checked"


def test_mig_without_an_instance_is_worse_than_with(check):
    assert check("mig", facts_with(Gpu(index=0, mig=True, num_mig_instances=0))).status == "fail"
    assert check("mig", facts_with(Gpu(index=0, mig=True, num_mig_instances=2))).status == "warn"


def test_one_unknown_gpu_keeps_a_check_from_passing(check):
    finding = check("persistence", facts_with(Gpu(index=0, persistence=True), Gpu(index=1)))
    assert finding.status == "not_checked"
    assert "the other 1 are fine" in finding.found


@pytest.mark.parametrize(
    "gpu, status",
    [
        (Gpu(index=0, name="NVIDIA H100 80GB HBM3", nvlinks_up=18, nvlinks_down=0), "pass"),
        (Gpu(index=0, name="NVIDIA H100 80GB HBM3", nvlinks_up=16, nvlinks_down=2), "fail"),
        (Gpu(index=0, name="NVIDIA L40S"), "pass"),
        (Gpu(index=0, name="NVIDIA H100 80GB HBM3"), "not_checked"),
        (Gpu(index=0, name="Some future GPU", nvlinks_up=0, nvlinks_down=0), "pass"),
    ],
)
def test_nvlinks_are_counted_against_the_cards(check, gpu, status):
    assert check("nvlink", facts_with(gpu)).status == status


@pytest.mark.parametrize(
    "gpu, host, status",
    [
        (
            Gpu(index=0, name="NVIDIA A100-SXM4-80GB"),
            Host(has_nvswitch=True, fabric_manager="not running"),
            "fail",
        ),
        (
            Gpu(index=0, name="NVIDIA A100-SXM4-80GB"),
            Host(has_nvswitch=True, fabric_manager="active"),
            "pass",
        ),
        (Gpu(index=0, name="NVIDIA A100-SXM4-80GB"), Host(), "not_checked"),
        (Gpu(index=0, name="NVIDIA L4"), Host(), "pass"),
        (Gpu(index=0, name="NVIDIA H100 80GB HBM3", fabric="In Progress / N/A"), Host(), "fail"),
        (Gpu(index=0, name="NVIDIA H100 80GB HBM3", fabric="Completed / Success"), Host(), "pass"),
    ],
)
def test_fabric_manager_is_asked_for_where_there_are_nvswitches(check, gpu, host, status):
    assert check("fabric_manager", facts_with(gpu, host=host)).status == status


def test_peer_access_is_named_pair_by_pair(check):
    pairs = ((0, 1, True), (1, 0, False))
    finding = check("peer_access", facts_with(Gpu(index=0), Gpu(index=1), torch=Torch(peer_access=pairs)))
    assert (finding.status, "1–0" in finding.found) == ("warn", True)


@pytest.mark.parametrize(
    "host, status",
    [
        (Host(iommu="translating", acs_enabled_bridges=0), "warn"),
        (Host(iommu="off", acs_enabled_bridges=3), "warn"),
        (Host(iommu="off", acs_enabled_bridges=0), "pass"),
        (Host(iommu="off", acs_enabled_bridges=Unknown("root only")), "not_checked"),
        (Host(), "not_checked"),
    ],
)
def test_acs_and_iommu(check, host, status):
    assert check("acs_iommu", facts_with(Gpu(index=0), Gpu(index=1), host=host)).status == status
