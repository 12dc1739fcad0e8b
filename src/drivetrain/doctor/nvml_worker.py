"""Reads every GPU by NVML, in a process of its own: a GPU off the bus can hang or kill whoever asks.

`python -m drivetrain.doctor.nvml_worker` hands back `{"driver": {…}, "gpus": […], "processes": […]}`.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drivetrain.doctor.child import answer
from drivetrain.doctor.facts import ABSENT, Driver, Gpu, GpuProcess
from drivetrain.spec.unknown import Unknown

# nvml.h. "Not supported" is a property of the card; these others are trouble.
_NOT_SUPPORTED = 3
_LOST = {
    15: "GPU is lost",
    16: "reset required",
    999: "Unknown Error",
    10: "time-out",
    17: "operating system blocks it",
}
_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
# nvml.h, NVML_GPU_FABRIC_STATE_*; 0 is "not supported".
_FABRIC = {1: "Not started", 2: "In Progress", 3: "Completed"}
# nvml.h, nvmlClocksEventReason*: bit → our word.
_THROTTLE = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


def read_all(nvml: Any) -> tuple[Driver, tuple[Gpu, ...] | Unknown, tuple[GpuProcess, ...] | Unknown]:
    """All that NVML tells. `nvml` is nvidia-ml-py, or what speaks like it."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _no_driver(nvml, error), Unknown(f"NVML did not start: {error}"), ABSENT
    try:
        driver = Driver(
            version=_text(nvml.nvmlSystemGetDriverVersion()), max_cuda_shown=_cuda(nvml), trouble=""
        )
        gpus, processes = [], []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
            except nvml.NVMLError as error:
                gpus.append(Gpu(index=index, errors=(f"no handle: {error}",)))
                continue
            gpus.append(_Reader(nvml, handle).gpu(index))
            processes += _processes(nvml, handle, index)
        return driver, tuple(gpus), tuple(processes)
    except nvml.NVMLError as error:
        return Driver(trouble=f"NVML failed: {error}"), Unknown(f"NVML failed: {error}"), ABSENT
    finally:
        nvml.nvmlShutdown()


def _no_driver(nvml: Any, error: Exception) -> Driver:
    code = getattr(error, "value", -1)
    if code == getattr(nvml, "NVML_ERROR_LIB_RM_VERSION_MISMATCH", 18):
        return Driver(trouble="Driver/library version mismatch")
    if code == getattr(nvml, "NVML_ERROR_LIBRARY_NOT_FOUND", 12):
        return Driver(version=Unknown("NVIDIA's library libnvidia-ml.so.1 is not there"))
    if code == getattr(nvml, "NVML_ERROR_DRIVER_NOT_LOADED", 9):
        return Driver(version=Unknown("NVIDIA's kernel module is not loaded"))
    return Driver(trouble=f"NVML did not start: {error}")


def _cuda(nvml: Any) -> str | Unknown:
    try:
        number = nvml.nvmlSystemGetCudaDriverVersion_v2()
    except (nvml.NVMLError, AttributeError) as error:
        return Unknown(f"NVML does not tell CUDA's version: {error}")
    return f"{number // 1000}.{number % 1000 // 10}"


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


class _Reader:
    """One GPU; what cannot be read becomes Unknown, and trouble is collected in `errors`."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._errors: list[str] = []

    def _call(
        self, what: str, name: str, *args: Any, take: Callable[[Any], Any] = lambda value: value
    ) -> Any:
        function = getattr(self._nvml, name, None)
        if function is None:
            return Unknown(f"this nvidia-ml-py has no {name}")
        try:
            return take(function(self._handle, *args))
        except self._nvml.NVMLError as error:
            code = getattr(error, "value", -1)
            if code in _LOST:
                self._errors.append(f"{what}: {_LOST[code]}")
            return Unknown("not supported by this card" if code == _NOT_SUPPORTED else f"NVML: {error}")

    def gpu(self, index: int) -> Gpu:
        call = self._call
        memory = call("memory", "nvmlDeviceGetMemoryInfo")
        capability = call("capability", "nvmlDeviceGetCudaComputeCapability")
        current, pending = self._remap()
        up, down = self._nvlinks()
        gpu = Gpu(
            index=index,
            name=call("name", "nvmlDeviceGetName", take=_text),
            uuid=call("UUID", "nvmlDeviceGetUUID", take=_text),
            bus_id=call("PCI", "nvmlDeviceGetPciInfo", take=lambda info: _text(info.busId).upper()),
            capability=capability if isinstance(capability, Unknown) else capability[0] * 10 + capability[1],
            persistence=call("persistence", "nvmlDeviceGetPersistenceMode", take=bool),
            compute_mode=call(
                "mode", "nvmlDeviceGetComputeMode", take=lambda value: _MODES.get(value, str(value))
            ),
            mig=call("MIG", "nvmlDeviceGetMigMode", take=lambda value: bool(value[0])),
            num_mig_instances=self._mig_instances(),
            ecc=call("ECC", "nvmlDeviceGetEccMode", take=lambda value: bool(value[0])),
            ecc_uncorrected_volatile=call("ECC errors", "nvmlDeviceGetTotalEccErrors", 1, 0, take=int),
            ecc_uncorrected_aggregate=call("ECC errors", "nvmlDeviceGetTotalEccErrors", 1, 1, take=int),
            remapped_correctable=current if isinstance(current, Unknown) else current[0],
            remapped_uncorrectable=current if isinstance(current, Unknown) else current[1],
            remap_pending=pending if isinstance(pending, Unknown) else bool(pending[0]),
            remap_failed=pending if isinstance(pending, Unknown) else bool(pending[1]),
            retired_pages_pending=call("retired pages", "nvmlDeviceGetRetiredPagesPendingStatus", take=bool),
            temperature_c=call("temperature", "nvmlDeviceGetTemperature", 0, take=float),
            power_w=call("power", "nvmlDeviceGetPowerUsage", take=lambda value: value / 1000),
            power_limit_w=call(
                "power limit", "nvmlDeviceGetEnforcedPowerLimit", take=lambda value: value / 1000
            ),
            power_limit_default_w=call(
                "power limit", "nvmlDeviceGetPowerManagementDefaultLimit", take=lambda value: value / 1000
            ),
            memory_used_mib=memory if isinstance(memory, Unknown) else memory.used >> 20,
            memory_total_mib=memory if isinstance(memory, Unknown) else memory.total >> 20,
            utilization_percent=call(
                "utilisation", "nvmlDeviceGetUtilizationRates", take=lambda value: int(value.gpu)
            ),
            sm_clock_mhz=call("clock", "nvmlDeviceGetClockInfo", 1, take=int),
            sm_clock_max_mhz=call("clock", "nvmlDeviceGetMaxClockInfo", 1, take=int),
            throttle_reasons=call("clocks", "nvmlDeviceGetCurrentClocksThrottleReasons", take=_throttle),
            pcie_gen=call("PCIe", "nvmlDeviceGetCurrPcieLinkGeneration", take=int),
            pcie_gen_max=call("PCIe", "nvmlDeviceGetMaxPcieLinkGeneration", take=int),
            pcie_width=call("PCIe", "nvmlDeviceGetCurrPcieLinkWidth", take=int),
            pcie_width_max=call("PCIe", "nvmlDeviceGetMaxPcieLinkWidth", take=int),
            nvlinks_up=up,
            nvlinks_down=down,
            fabric=self._fabric(),
        )
        return dataclasses.replace(gpu, errors=tuple(dict.fromkeys(self._errors)))

    def _remap(self) -> tuple[Any, Any]:
        rows = self._call("row remap", "nvmlDeviceGetRemappedRows")
        if isinstance(rows, Unknown):
            return rows, rows
        return rows[:2], rows[2:4]

    def _mig_instances(self) -> int | Unknown:
        slots = self._call("MIG", "nvmlDeviceGetMaxMigDeviceCount")
        if isinstance(slots, Unknown):
            return slots
        found = 0
        for slot in range(slots):
            try:
                self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(self._handle, slot)
            except self._nvml.NVMLError:  # an empty slot
                continue
            found += 1
        return found

    def _fabric(self) -> str | Unknown:
        """The state of the NVSwitch fabric as nvidia-smi -q words it."""
        kind = getattr(self._nvml, "c_nvmlGpuFabricInfo_t", None)
        if kind is None:
            return Unknown("this nvidia-ml-py has no nvmlDeviceGetGpuFabricInfo")
        info = kind()
        reached = self._call("fabric", "nvmlDeviceGetGpuFabricInfo", ctypes.byref(info))
        if isinstance(reached, Unknown):
            return reached
        state = _FABRIC.get(info.state)
        if state is None:
            return Unknown("the card is not part of a fabric")
        return (
            (f"{state} / {'Success' if info.status == 0 else f'error {info.status}'}")
            if info.state == 3
            else state
        )

    def _nvlinks(self) -> tuple[int | Unknown, int | Unknown]:
        up = down = 0
        last: Unknown = ABSENT
        for link in range(int(getattr(self._nvml, "NVML_NVLINK_MAX_LINKS", 18))):
            state = self._call("NVLink", "nvmlDeviceGetNvLinkState", link)
            if isinstance(state, Unknown):
                last = state  # a link number beyond those of the card, or a card without NVLink
                continue
            up, down = (up + 1, down) if state else (up, down + 1)
        return (up, down) if up or down else (last, last)


def _throttle(bits: int) -> tuple[str, ...]:
    return tuple(word for bit, word in _THROTTLE.items() if bits & bit)


def _processes(nvml: Any, handle: Any, index: int) -> list[GpuProcess]:
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return []
    return [
        GpuProcess(
            gpu=index,
            pid=process.pid,
            name=_process_name(process.pid),
            memory_mib=ABSENT if process.usedGpuMemory is None else process.usedGpuMemory >> 20,
        )
        for process in running
    ]


def _process_name(pid: int) -> str:
    """ "" for a process of another container, which is not in this one's /proc."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _plain(value: Any) -> Any:
    return value.to_json() if isinstance(value, Unknown) else value


def _fields(thing: Any) -> dict[str, Any]:
    return {item.name: _plain(getattr(thing, item.name)) for item in dataclasses.fields(thing)}


def main() -> None:
    import pynvml

    driver, gpus, processes = read_all(pynvml)
    answer(
        {
            "driver": _fields(driver),
            "gpus": _plain(gpus) if isinstance(gpus, Unknown) else [_fields(gpu) for gpu in gpus],
            "processes": _plain(processes)
            if isinstance(processes, Unknown)
            else [_fields(process) for process in processes],
        }
    )


if __name__ == "__main__":
    main()
