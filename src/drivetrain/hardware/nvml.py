"""The one place that talks to NVML (nvidia-ml-py): what each GPU says of itself, N/A as Unknown.

A call that fails makes that one fact Unknown; a GPU that fails makes its own facts Unknown, not the others'.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from drivetrain.spec.unknown import Unknown

# nvml.h: NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND
_NO_DRIVER = {9: "the NVIDIA driver is not loaded", 12: "no NVIDIA driver (libnvidia-ml.so.1 is not there)"}
# nvml.h: NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_FUNCTION_NOT_FOUND
_NOT_SUPPORTED = {3: "N/A on this GPU", 13: "this driver has no such call"}

Kind = Literal["compute", "mps", "graphics"]
_LISTS: tuple[tuple[Kind, str], ...] = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
)


class NvmlError(Exception):
    """NVML did not start, or cannot list the GPUs. `means_no_driver`: there is none, rather than a fault."""

    def __init__(self, reason: str, *, means_no_driver: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.means_no_driver = means_no_driver


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process with a context on a GPU, by its number in the machine's own process namespace."""

    pid: int
    kind: Kind
    memory_bytes: int | Unknown


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """What one GPU says now.

    Attributes:
        index: NVML's, by PCI bus.
        memory_used_bytes: without what the driver keeps for itself, where it tells them apart (from 510 on).
        processes: Unknown where those that compute could not be read.
        mig: UUIDs of its MIG instances; Unknown where it could not be read, () on a GPU that is not split.
        is_split: whether it is in MIG mode.
    """

    index: int
    uuid: str | Unknown
    name: str | Unknown
    pci_bus_id: str | Unknown
    memory_total_bytes: int | Unknown
    memory_used_bytes: int | Unknown
    utilisation_percent: int | Unknown
    temperature_c: int | Unknown
    processes: tuple[GpuProcess, ...] | Unknown
    is_split: bool | Unknown
    mig: tuple[str, ...] | Unknown


@contextmanager
def open_nvml(module: Any = None) -> Iterator[Nvml]:
    """NVML while the block runs.

    Args:
        module: what to ask in nvidia-ml-py's place, for tests.

    Raises:
        NvmlError: it did not start.
    """
    if module is None:
        try:
            import pynvml
        except ImportError as error:
            raise NvmlError(f"nvidia-ml-py cannot be imported: {error}") from error
        module = pynvml
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        code = getattr(error, "value", -1)
        reason = _NO_DRIVER.get(code, f"NVML did not start: {error}")
        raise NvmlError(reason, means_no_driver=code in _NO_DRIVER) from error
    try:
        yield Nvml(module)
    finally:
        module.nvmlShutdown()


class Nvml:
    """An NVML that has started; from `open_nvml`."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def read(self, call: str, *arguments: Any) -> Any | Unknown:
        """What nvidia-ml-py's function `call` returns (bytes as text), or Unknown with NVML's reason.

        An argument that is itself Unknown, say a handle, gives that Unknown back.
        """
        lacking = next((value for value in arguments if isinstance(value, Unknown)), None)
        if lacking is not None:
            return lacking
        function = getattr(self._module, call, None)
        if function is None:
            return Unknown(f"this nvidia-ml-py has no {call}")
        try:
            value = function(*arguments)
        except self._module.NVMLError as error:
            return Unknown(_NOT_SUPPORTED.get(getattr(error, "value", -1), f"NVML: {error}"))
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def num_gpus(self) -> int:
        """Raises NvmlError where NVML cannot count them."""
        count = self.read("nvmlDeviceGetCount")
        if isinstance(count, Unknown):
            raise NvmlError(f"NVML failed while listing GPUs: {count.reason}")
        return int(count)

    def handle(self, index: int) -> Any | Unknown:
        return self.read("nvmlDeviceGetHandleByIndex", index)

    def uuid(self, handle: Any) -> str | Unknown:
        return _text(self.read("nvmlDeviceGetUUID", handle))

    def name(self, handle: Any) -> str | Unknown:
        return _text(self.read("nvmlDeviceGetName", handle))

    def all_facts(self) -> tuple[GpuFacts, ...]:
        return tuple(self.facts(index) for index in range(self.num_gpus()))

    def facts(self, index: int) -> GpuFacts:
        handle = self.handle(index)
        total, used = self._memory(handle)
        is_split = self.is_split(handle)
        return GpuFacts(
            index=index,
            uuid=self.uuid(handle),
            name=self.name(handle),
            pci_bus_id=_text(_field(self.read("nvmlDeviceGetPciInfo", handle), "busId")),
            memory_total_bytes=total,
            memory_used_bytes=used,
            utilisation_percent=_field(self.read("nvmlDeviceGetUtilizationRates", handle), "gpu"),
            temperature_c=self.read("nvmlDeviceGetTemperature", handle, 0),  # 0: NVML_TEMPERATURE_GPU
            processes=self.processes(handle),
            is_split=is_split,
            mig=self.mig(handle) if is_split is True else is_split if isinstance(is_split, Unknown) else (),
        )

    def processes(self, handle: Any) -> tuple[GpuProcess, ...] | Unknown:
        """Those that compute first. A process that also draws is listed once, as one that computes."""
        found: dict[int, GpuProcess] = {}
        for kind, call in _LISTS:
            listed = self.read(call, handle)
            if isinstance(listed, Unknown):
                if kind == "compute":
                    return listed
                continue  # no display, no MPS: "not supported" on many cards
            for item in listed:
                used = Unknown("N/A on this GPU") if item.usedGpuMemory is None else int(item.usedGpuMemory)
                found.setdefault(item.pid, GpuProcess(pid=int(item.pid), kind=kind, memory_bytes=used))
        return tuple(found.values())

    def is_split(self, handle: Any) -> bool | Unknown:
        """Whether the GPU is in MIG mode; one that cannot be split is not."""
        if isinstance(handle, Unknown):
            return handle
        try:
            current, _ = self._module.nvmlDeviceGetMigMode(handle)
        except self._module.NVMLError as error:
            if getattr(error, "value", -1) in _NOT_SUPPORTED:
                return False
            return Unknown(f"NVML: {error}")
        return bool(current)

    def mig(self, handle: Any) -> tuple[str, ...]:
        """UUIDs of the MIG instances of a GPU in MIG mode, in the order of their slots."""
        slots = self.read("nvmlDeviceGetMaxMigDeviceCount", handle)
        handles = (
            self.read("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
            for slot in range(0 if isinstance(slots, Unknown) else slots)
        )
        uuids = (self.uuid(instance) for instance in handles)  # an empty slot is "not found"
        return tuple(uuid for uuid in uuids if isinstance(uuid, str))

    def _memory(self, handle: Any) -> tuple[int | Unknown, int | Unknown]:
        version = getattr(self._module, "nvmlMemory_v2", None)
        memory = self.read("nvmlDeviceGetMemoryInfo", handle, version)
        if isinstance(memory, Unknown):
            memory = self.read("nvmlDeviceGetMemoryInfo", handle)
        return _field(memory, "total"), _field(memory, "used")


def _field(value: Any | Unknown, name: str) -> Any | Unknown:
    return value if isinstance(value, Unknown) else getattr(value, name)


def _text(value: str | bytes | Unknown) -> str | Unknown:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
