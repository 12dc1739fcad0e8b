"""What GPUs say of themselves, through nvidia-ml-py and a compiled stand-in for NVML."""

from __future__ import annotations

import ctypes
import dataclasses

import pytest

from drivetrain.hardware.nvml import GpuProcess, NvmlError, open_nvml
from drivetrain.spec.unknown import Unknown
from nvml_stub import uuid

GIB = 1 << 30


def all_facts(stub):
    with open_nvml(stub.module()) as nvml:
        return nvml.all_facts()


def unknown_fields(facts):
    return {
        field.name for field in dataclasses.fields(facts) if isinstance(getattr(facts, field.name), Unknown)
    }


def test_a_gpus_facts_are_read(nvml_stub):
    nvml_stub.write(
        "gpu2.memory_used = 0x40000000\ngpu2.utilisation = 97\ngpu2.temperature = 71\n"
        "gpu2.name = Fast GPU\ngpu2.process = 41 compute 1073741824\ngpu2.process = 42 graphics na\n"
    )
    facts = all_facts(nvml_stub)
    assert [item.index for item in facts] == list(range(8))
    assert not any(map(unknown_fields, facts))
    gpu = facts[2]
    assert (gpu.uuid, gpu.name, gpu.pci_bus_id) == (uuid(2), "Fast GPU", "00000000:12:00.0")
    assert (gpu.memory_used_bytes, gpu.memory_total_bytes) == (GIB, 80 * GIB)
    assert (gpu.utilisation_percent, gpu.temperature_c, gpu.is_split, gpu.mig) == (97, 71, False, ())
    assert gpu.processes[0] == GpuProcess(pid=41, kind="compute", memory_bytes=GIB)
    assert (gpu.processes[1].kind, type(gpu.processes[1].memory_bytes)) == ("graphics", Unknown)


def test_what_is_na_is_unknown_and_the_rest_is_read(nvml_stub):
    nvml_stub.write("gpu*.temperature = na\ngpu1.utilisation = na\ngpu1.memory_used = error 999\n")
    facts = all_facts(nvml_stub)
    assert unknown_fields(facts[0]) == {"temperature_c"}
    assert "N/A" in facts[0].temperature_c.reason
    assert unknown_fields(facts[1]) == {
        "temperature_c",
        "utilisation_percent",
        "memory_used_bytes",
        "memory_total_bytes",
    }


@pytest.mark.parametrize("num_good", range(9))
def test_a_gpu_that_fails_in_the_middle_does_not_hide_the_others(nvml_stub, num_good):
    nvml_stub.write(f"gpu3.error = 15\ngpu3.error_after = {num_good}\n")
    facts = all_facts(nvml_stub)
    assert len(facts) == 8
    assert unknown_fields(facts[3])
    assert isinstance(facts[3].uuid, str) == (num_good >= 4)
    lost = [getattr(facts[3], name) for name in unknown_fields(facts[3])]
    assert any("lost" in value.reason.lower() for value in lost)
    assert not any(unknown_fields(item) for item in facts if item.index != 3)


def test_older_drivers_count_memory_without_the_second_version(nvml_stub):
    nvml_stub.write("system.missing = nvmlDeviceGetMemoryInfo_v2\ngpu0.memory_used = 1073741824\n")
    assert all_facts(nvml_stub)[0].memory_used_bytes == GIB + (512 << 20)  # what the driver keeps included


def test_mig_instances_are_listed_by_slot_without_the_empty_ones(nvml_stub):
    nvml_stub.write(
        "gpu1.mig = 1\ngpu1.mig_device = MIG-aa\ngpu1.mig_device = none\ngpu1.mig_device = MIG-bb\n"
    )
    facts = all_facts(nvml_stub)
    assert (facts[1].is_split, facts[1].mig) == (True, ("MIG-aa", "MIG-bb"))
    assert (facts[0].is_split, facts[0].mig) == (False, ())


@pytest.mark.parametrize(
    "text, means_no_driver",
    [("system.init = error 9", True), ("system.init = error 18", False), ("system.count = error 999", False)],
)
def test_an_nvml_that_does_not_start_says_why(nvml_stub, text, means_no_driver):
    nvml_stub.write(text)
    with pytest.raises(NvmlError) as caught:
        all_facts(nvml_stub)
    assert caught.value.means_no_driver is means_no_driver


def test_the_stub_answers_what_topology_and_doctor_ask(nvml_stub):
    """Each function with a layout of its own, through nvidia-ml-py's structures."""
    nvml_stub.write(
        "pair.0-1.ancestor = PIX\ngpu0.nvlinks = 0-5:gpu1 6:switch 7:down\ngpu0.cpu_affinity = 0-2,65\n"
        "gpu0.pcie_width = 8\ngpu0.remapped_uncorrectable = 2\ngpu0.remap_pending = 1\n"
        "gpu0.throttle_reasons = 0x40\ngpu0.ecc_pending = 0\ngpu0.field82 = 7\ngpu0.fabric_state = 3\n"
        "gpu0.retired_pages = 3\ngpu0.ecc_uncorrected_aggregate = 5\ngpu0.compute_mode = 3\n"
    )
    nvml = nvml_stub.module()
    nvml.nvmlInit()
    try:
        one, two, four = (nvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1, 4))
        assert nvml.nvmlDeviceGetTopologyCommonAncestor(one, two) == nvml.NVML_TOPOLOGY_SINGLE
        assert nvml.nvmlDeviceGetTopologyCommonAncestor(one, four) == nvml.NVML_TOPOLOGY_SYSTEM
        assert [nvml.nvmlDeviceGetNvLinkState(one, link) for link in range(8)] == [1] * 7 + [0]
        assert nvml.nvmlDeviceGetNvLinkRemotePciInfo(one, 5).busId == nvml.nvmlDeviceGetPciInfo(two).busId
        assert nvml.nvmlDeviceGetNvLinkRemoteDeviceType(one, 6) == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        with pytest.raises(nvml.NVMLError_NotSupported):
            nvml.nvmlDeviceGetNvLinkState(one, 8)
        assert list(nvml.nvmlDeviceGetCpuAffinity(one, 2)) == [7, 2]
        assert nvml.nvmlDeviceGetCurrPcieLinkWidth(one) == 8
        assert nvml.nvmlDeviceGetRemappedRows(one) == (0, 2, 1, 0)
        assert nvml.nvmlDeviceGetCurrentClocksThrottleReasons(one) == 0x40
        assert nvml.nvmlDeviceGetEccMode(one) == [1, 0]
        assert nvml.nvmlDeviceGetTotalEccErrors(one, 1, 1) == 5
        assert nvml.nvmlDeviceGetComputeMode(one) == nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
        values = nvml.nvmlDeviceGetFieldValues(one, [82, 83])
        assert (values[0].value.ullVal, values[1].nvmlReturn) == (7, nvml.NVML_ERROR_NOT_SUPPORTED)
        fabric = nvml.c_nvmlGpuFabricInfo_v2_t()
        nvml.nvmlDeviceGetGpuFabricInfoV(one, ctypes.byref(fabric))
        assert (fabric.state, fabric.status) == (3, 0)
        assert len(nvml.nvmlDeviceGetRetiredPages(one, 0)) == 3
        assert nvml.nvmlDeviceGetCudaComputeCapability(one) == (9, 0)
        assert nvml.nvmlDeviceGetMaxClockInfo(one, nvml.NVML_CLOCK_SM) == 1980
        assert nvml.nvmlDeviceGetPowerManagementLimitConstraints(one) == [200000, 700000]
        assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(uuid(4).encode())) == 4
        assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(b"0000:14:00.0")) == 4
        with pytest.raises(nvml.NVMLError_FunctionNotFound):
            nvml.nvmlDeviceGetFanSpeed(one)
    finally:
        nvml.nvmlShutdown()
