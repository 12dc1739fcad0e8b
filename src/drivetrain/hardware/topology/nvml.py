"""The wiring from NVML, with NICs from sysfs. A call that fails makes its fact unknown, not the rest."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from drivetrain.hardware.topology.graph import GpuNode, Pair, Topology
from drivetrain.hardware.topology.links import MAX_NVLINKS, Link, PcieSlot, nvlink
from drivetrain.hardware.topology.pci import PciDevice, bus_id_for_sysfs, pcie_link, read_device, read_nics
from drivetrain.spec.unknown import Unknown

T = TypeVar("T")

# nvml.h: nvmlGpuTopologyLevel_t
_LEVELS = {0: "PSB", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# nvml.h: nvmlGpuP2PStatus_t, in the words of `topo -p2p`; 0 is OK and 6 is "unknown".
_REFUSALS = {1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS"}
_P2P_READ = 0  # NVML_P2P_CAPS_INDEX_READ, which nvidia-ml-py has as a tuple by mistake
_NO_SUCH_LINK = (2, 3)  # NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED
_TO_GPU, _TO_SWITCH = 0, 2  # nvml.h: nvmlIntNvLinkDeviceType_t
_MASK_WORDS = 64  # of 64 bits: 4,096 CPUs
_NODE_WORDS = 16
_SCOPE_NODE = 0  # NVML_AFFINITY_SCOPE_NODE


class NvmlUnavailableError(Exception):
    """NVML cannot be used at all; its text says why."""


@dataclass(frozen=True, kw_only=True)
class _Ends:
    """Where a GPU's active NVLinks lead: counts by the peer's bus id, and how many to a switch."""

    peers: dict[str, int]
    num_to_switch: int


def read_nvml(nvml: Any = None, root: Path = Path("/")) -> Topology:
    """The machine's GPUs as NVML sees them, whatever CUDA_VISIBLE_DEVICES says.

    Args:
        nvml: the module to ask, for tests; None imports nvidia-ml-py.
        root: where /sys is found.

    Raises:
        NvmlUnavailableError: no nvidia-ml-py, no driver, or NVML does not start or count its GPUs.
    """
    if nvml is None:
        try:
            import pynvml
        except ImportError as error:
            raise NvmlUnavailableError(f"nvidia-ml-py cannot be imported: {error}") from error
        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NvmlUnavailableError(f"NVML did not start: {error}") from error
    try:
        handles = {}
        problems = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
            except nvml.NVMLError as error:
                problems.append(f"GPU{index}: {error}")
        return _Machine(nvml, handles, root).topology(problems)
    except nvml.NVMLError as error:
        raise NvmlUnavailableError(f"NVML failed while counting GPUs: {error}") from error
    finally:
        nvml.nvmlShutdown()


class _Machine:
    """One reading of a started NVML. `handles` by index; one that cannot be had is missing."""

    def __init__(self, nvml: Any, handles: dict[int, Any], root: Path) -> None:
        self._nvml = nvml
        self._handles = handles
        self._root = root
        self._bus_ids = {index: self._ask(self._bus_id, handle) for index, handle in handles.items()}
        self._ends = {index: self._ask(self._nvlink_ends, handle) for index, handle in handles.items()}
        self._devices = {index: self._device(bus_id) for index, bus_id in self._bus_ids.items()}

    def topology(self, problems: list[str]) -> Topology:
        pairs = list(itertools.combinations(sorted(self._handles), 2))
        links = {pair: self._link(*pair) for pair in pairs}
        nics = read_nics(self._root / "sys")
        nic_links: dict[tuple[int, str], Link | Unknown] = {}
        for index, device in self._devices.items():
            for nic, other in nics:
                nic_links[(index, nic.label)] = (
                    pcie_link(device, other) if device is not None else Unknown("sysfs does not show the GPU")
                )
        problems += [
            f"GPU{a}-GPU{b}: {link.reason}" for (a, b), link in links.items() if isinstance(link, Unknown)
        ]
        return Topology(
            gpus=tuple(self._node(index, handle) for index, handle in sorted(self._handles.items())),
            links=links,
            nics=tuple(nic for nic, _ in nics),
            nic_links=nic_links,
            refused_peers=self._refused(pairs),
            source="NVML",
            unknown=tuple(problems),
        )

    def _ask(self, call: Callable[..., T], *arguments: Any) -> T | Unknown:
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            return Unknown(f"NVML: {error}")

    def _node(self, index: int, handle: Any) -> GpuNode:
        nvml = self._nvml
        memory_numa = self._ask(nvml.nvmlDeviceGetNumaNodeId, handle)
        return GpuNode(
            index=index,
            uuid=self._ask(lambda: _text(nvml.nvmlDeviceGetUUID(handle))),
            name=self._ask(lambda: _text(nvml.nvmlDeviceGetName(handle))),
            bus_id=self._bus_ids[index],
            cpus=self._cpus(index, handle),
            numa=self._numa(index, handle),
            memory_numa=memory_numa if isinstance(memory_numa, int) and memory_numa >= 0 else None,
            slot=self._ask(self._slot, handle),
        )

    def _slot(self, handle: Any) -> PcieSlot | Unknown:
        generation = self._nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        width = self._nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
        # A GPU that is not on PCIe (a superchip) or not seen through a virtual machine has 0.
        if generation < 1 or width < 1:
            return Unknown("NVML gives no PCIe generation and width")
        return PcieSlot(generation=generation, width=width)

    def _bus_id(self, handle: Any) -> str:
        return bus_id_for_sysfs(_text(self._nvml.nvmlDeviceGetPciInfo(handle).busId))

    def _device(self, bus_id: str | Unknown) -> PciDevice | None:
        return read_device(self._root / "sys/bus/pci/devices" / bus_id) if isinstance(bus_id, str) else None

    def _cpus(self, index: int, handle: Any) -> frozenset[int] | Unknown:
        words = self._ask(self._nvml.nvmlDeviceGetCpuAffinity, handle, _MASK_WORDS)
        cpus = Unknown("NVML names no CPU") if not isinstance(words, Unknown) else words
        if not isinstance(words, Unknown) and (bits := _bits(words)):
            return bits
        device = self._devices[index]
        return device.cpus if device is not None and isinstance(device.cpus, frozenset) else cpus

    def _numa(self, index: int, handle: Any) -> frozenset[int] | Unknown:
        device = self._devices[index]
        if device is not None and device.numa is not None:
            return frozenset({device.numa})
        words = self._ask(self._nvml.nvmlDeviceGetMemoryAffinity, handle, _NODE_WORDS, _SCOPE_NODE)
        if isinstance(words, Unknown):
            return words
        return _bits(words) or Unknown("NVML names no NUMA node")

    def _nvlink_ends(self, handle: Any) -> _Ends:
        nvml = self._nvml
        peers: dict[str, int] = {}
        num_to_switch = 0
        for number in range(MAX_NVLINKS):
            try:
                if not nvml.nvmlDeviceGetNvLinkState(handle, number):
                    continue
            except nvml.NVMLError as error:
                if getattr(error, "value", None) in _NO_SUCH_LINK:
                    break
                raise
            kind = self._ask(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number)
            if kind == _TO_SWITCH:
                num_to_switch += 1
                continue
            bus_id = bus_id_for_sysfs(_text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number).busId))
            # Drivers that do not know the call above give the switch's bus id, which is no GPU's.
            if kind == _TO_GPU or bus_id in self._bus_ids.values():
                peers[bus_id] = peers.get(bus_id, 0) + 1
            elif isinstance(kind, Unknown):
                num_to_switch += 1
        return _Ends(peers=peers, num_to_switch=num_to_switch)

    def _link(self, a: int, b: int) -> Link | Unknown:
        """NVLink where there is any, else the PCIe path; unknown where the NVLinks cannot be read."""
        ends, others, bus_id = self._ends[a], self._ends[b], self._bus_ids[b]
        for what in (ends, others, bus_id):
            if isinstance(what, Unknown):
                return what
        assert isinstance(ends, _Ends)
        assert isinstance(others, _Ends)
        num_links = ends.peers.get(str(bus_id), 0) or min(ends.num_to_switch, others.num_to_switch)
        if num_links:
            return nvlink(num_links)
        level = self._ask(self._nvml.nvmlDeviceGetTopologyCommonAncestor, self._handles[a], self._handles[b])
        if not isinstance(level, Unknown):
            kind = _LEVELS.get(level)
            return (
                Unknown(f"NVML names a level {level} that is not in its header")
                if kind is None
                else Link(kind=kind)
            )
        first, second = self._devices[a], self._devices[b]
        return level if first is None or second is None else pcie_link(first, second)

    def _refused(self, pairs: list[Pair]) -> dict[Pair, str]:
        refused = {}
        for a, b in pairs:
            status = self._ask(
                self._nvml.nvmlDeviceGetP2PStatus, self._handles[a], self._handles[b], _P2P_READ
            )
            if isinstance(status, int) and status in _REFUSALS:
                refused[(a, b)] = _REFUSALS[status]
        return refused


def _bits(words: Any) -> frozenset[int]:
    return frozenset(64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
