"""NVML's answers as facts: N/A stays unknown, and a GPU that errors in mid-call is told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from drivetrain.doctor.nvml_worker import read_all
from drivetrain.spec.unknown import Unknown


class FakeNvml:
    """Answers by table: function name → value, or an error code, for all GPUs or for one."""

    class NVMLError(Exception):
        def __init__(self, value):
            super().__init__(f"code {value}")
            self.value = value

    NVML_NVLINK_MAX_LINKS = 18

    def __init__(self, count=1, init_code=None, **answers):
        self.count, self.init_code, self.answers = count, init_code, answers
        self.num_open = 0

    def nvmlInit(self):  # noqa: N802  NVML's names
        if self.init_code is not None:
            raise self.NVMLError(self.init_code)
        self.num_open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.num_open -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return self.count

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return "580.95.05"

    def nvmlSystemGetCudaDriverVersion_v2(self):  # noqa: N802
        return 13000

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return self._answer("nvmlDeviceGetHandleByIndex", index, default=index)

    def nvmlDeviceGetNvLinkState(self, handle, link):  # noqa: N802
        if link >= 4:
            raise self.NVMLError(2)
        return link < 3

    def _answer(self, name, handle, default=None):
        value = self.answers.get(name, {}).get(handle, default)
        if isinstance(value, int) and value < 0:
            raise self.NVMLError(-value)
        if value is None:
            raise self.NVMLError(3)
        return value

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)
        return lambda handle, *args: self._answer(name, handle)


def test_values_and_unknowns():
    nvml = FakeNvml(
        nvmlDeviceGetName={0: b"NVIDIA H100 80GB HBM3"},
        nvmlDeviceGetPersistenceMode={0: 1},
        nvmlDeviceGetComputeMode={0: 3},
        nvmlDeviceGetMigMode={0: (1, 1)},
        nvmlDeviceGetPowerUsage={0: 71234},
        nvmlDeviceGetCudaComputeCapability={0: (9, 0)},
        nvmlDeviceGetCurrentClocksThrottleReasons={0: 0x44},
        nvmlDeviceGetRemappedRows={0: (0, 2, 1, 0)},
        nvmlDeviceGetMemoryInfo={0: SimpleNamespace(used=3 << 20, total=80 << 30)},
        nvmlDeviceGetComputeRunningProcesses={0: [SimpleNamespace(pid=7, usedGpuMemory=None)]},
    )
    driver, (gpu,), (process,) = read_all(nvml)
    assert (driver.version, driver.max_cuda_shown, driver.trouble) == ("580.95.05", "13.0", "")
    assert (gpu.name, gpu.persistence, gpu.compute_mode, gpu.mig) == (
        "NVIDIA H100 80GB HBM3",
        True,
        "exclusive_process",
        True,
    )
    assert (gpu.power_w, gpu.capability, gpu.memory_used_mib) == (71.234, 90, 3)
    assert gpu.throttle_reasons == ("power cap", "hardware thermal slowdown")
    assert (gpu.remapped_uncorrectable, gpu.remap_pending, gpu.remap_failed) == (2, True, False)
    assert (gpu.nvlinks_up, gpu.nvlinks_down) == (3, 1)
    assert isinstance(gpu.fabric, Unknown)
    assert gpu.ecc == Unknown("not supported by this card")
    assert gpu.errors == ()
    assert (process.pid, isinstance(process.memory_mib, Unknown)) == (7, True)
    assert nvml.num_open == 0


def test_a_gpu_that_is_lost_in_mid_call_is_told_and_the_others_are_read():
    nvml = FakeNvml(
        count=3,
        nvmlDeviceGetHandleByIndex={2: -15},
        nvmlDeviceGetTemperature={0: 30, 1: -15},
        nvmlDeviceGetPowerUsage={0: 1000, 1: -999},
    )
    _, gpus, _ = read_all(nvml)
    assert gpus[0].errors == ()
    assert gpus[1].errors == ("temperature: GPU is lost", "power: Unknown Error")
    assert isinstance(gpus[1].temperature_c, Unknown)
    assert "no handle" in gpus[2].errors[0]


@pytest.mark.parametrize(
    "code, trouble, version",
    [
        (18, "Driver/library version mismatch", None),
        (12, None, "libnvidia-ml"),
        (9, None, "not loaded"),
        (4, "did not", None),
    ],
)
def test_no_nvml_is_told_with_its_reason(code, trouble, version):
    driver, gpus, _ = read_all(FakeNvml(init_code=code))
    assert isinstance(gpus, Unknown)
    assert trouble is None or trouble in driver.trouble
    assert version is None or version in driver.version.reason
