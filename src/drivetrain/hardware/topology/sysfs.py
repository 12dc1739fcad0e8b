"""The wiring from sysfs alone: PCIe paths, NUMA nodes and CPUs. NVLink it does not show."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from drivetrain.hardware.topology.graph import GpuNode, Topology
from drivetrain.hardware.topology.links import Link
from drivetrain.hardware.topology.pci import PciDevice, pcie_link, read_device, read_nics
from drivetrain.spec.unknown import Unknown

_NVIDIA = "0x10de"
_GPU_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controllers
_NO_NVLINK = "NVLink: sysfs does not show it; links are the PCIe paths beneath, which NVLink may bypass"


def read_sysfs(root: Path = Path("/")) -> Topology:
    """The machine's NVIDIA GPUs by bus id, which is nvidia-smi's order too; none where there are none."""
    devices = _gpus(root)
    nics = read_nics(root / "sys")
    pairs = list(itertools.combinations(range(len(devices)), 2))
    links = {(a, b): pcie_link(devices[a], devices[b]) for a, b in pairs}
    nic_links: dict[tuple[int, str], Link | Unknown] = {
        (index, nic.label): pcie_link(device, other)
        for index, device in enumerate(devices)
        for nic, other in nics
    }
    problems = [
        f"GPU{a}-GPU{b}: {link.reason}" for (a, b), link in links.items() if isinstance(link, Unknown)
    ]
    if len(devices) > 1:
        problems.append(_NO_NVLINK)
    return Topology(
        gpus=tuple(_node(index, device, root) for index, device in enumerate(devices)),
        links=links,
        nics=tuple(nic for nic, _ in nics),
        nic_links=nic_links,
        source="sysfs",
        unknown=tuple(problems),
    )


def _gpus(root: Path) -> list[PciDevice]:
    folder = root / "sys/bus/pci/devices"
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return []
    found = []
    for path in paths:
        if _read(path / "vendor") == _NVIDIA and (_read(path / "class") or "").startswith(_GPU_CLASSES):
            device = read_device(path)
            if device is not None:
                found.append(device)
    return found


def _node(index: int, device: PciDevice, root: Path) -> GpuNode:
    facts = _read(root / "proc/driver/nvidia/gpus" / device.bus_id / "information") or ""
    name = re.search(r"^Model:\s*(\S.*)$", facts, re.MULTILINE)
    uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]{36})\s*$", facts, re.MULTILINE)
    return GpuNode(
        index=index,
        name=name[1].strip() if name else Unknown("the driver is not loaded"),
        uuid=uuid[1] if uuid else Unknown("the driver is not loaded"),
        bus_id=device.bus_id,
        cpus=device.cpus,
        numa=Unknown("the firmware names no node") if device.numa is None else frozenset({device.numa}),
        slot=device.slot,
    )


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return None
