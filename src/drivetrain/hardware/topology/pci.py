"""What sysfs says of PCI devices: the way between two of them, their NUMA node and CPUs, their slot."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from drivetrain.hardware.topology.graph import Nic, read_ranges
from drivetrain.hardware.topology.links import Link, PcieSlot
from drivetrain.spec.unknown import Unknown

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_DEVICE = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# GT/s as the kernel writes them → generation.
_GENERATIONS = {
    "2.5": 1,
    "5.0": 2,
    "5": 2,
    "8.0": 3,
    "8": 3,
    "16.0": 4,
    "16": 4,
    "32.0": 5,
    "32": 5,
    "64.0": 6,
}


@dataclass(frozen=True, kw_only=True)
class PciDevice:
    """`way`: the host bridge, then every bridge down to the device itself."""

    bus_id: str
    way: tuple[str, ...]
    numa: int | None
    cpus: frozenset[int] | Unknown
    slot: PcieSlot | Unknown


def bus_id_for_sysfs(bus_id: str) -> str:
    """NVML's `00000000:1B:00.0` as sysfs spells it; domains past 16 bits keep their digits."""
    domain, _, rest = bus_id.strip().lower().partition(":")
    return f"{domain[-4:] if domain[:-4].strip('0') == '' else domain.lstrip('0')}:{rest}"


def read_device(path: Path) -> PciDevice | None:
    """The PCI device that a sysfs path leads to; None where it is none (a software NIC, a broken link)."""
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    parts = real.parts
    roots = [at for at, part in enumerate(parts) if _ROOT.fullmatch(part)]
    if not roots or not _DEVICE.fullmatch(parts[-1]):
        return None
    numa = _text(real / "numa_node")
    cpus = read_ranges(_text(real / "local_cpulist") or "")
    return PciDevice(
        bus_id=parts[-1],
        way=parts[roots[-1] :],
        # -1 is "the firmware does not say".
        numa=int(numa) if numa is not None and numa.isdecimal() else None,
        cpus=Unknown(f"no CPUs in {real}/local_cpulist") if cpus is None else cpus,
        slot=_slot(real),
    )


def _slot(path: Path) -> PcieSlot | Unknown:
    speed = (_text(path / "max_link_speed") or "").split(" ")[0]
    width = _text(path / "max_link_width") or ""
    if speed not in _GENERATIONS or not width.isdecimal() or not 1 <= int(width) <= 32:
        return Unknown(f"no speed and width in {path}")
    return PcieSlot(generation=_GENERATIONS[speed], width=int(width))


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return None


def pcie_link(a: PciDevice, b: PciDevice) -> Link | Unknown:
    """The PCIe path between two devices, in the words of the matrix.

    Below one host bridge the devices part at a bridge: if no other bridge lies between it and either of them
    but the port that the device hangs on, that is one switch.
    """
    if a.way[0] != b.way[0]:
        if a.numa is None or b.numa is None:
            return Unknown("different host bridges, and the NUMA nodes are not known")
        return Link(kind="NODE" if a.numa == b.numa else "SYS")
    num_shared = 0
    for one, other in zip(a.way[1:], b.way[1:], strict=False):
        if one != other:
            break
        num_shared += 1
    if num_shared == 0:
        return Link(kind="PHB")
    num_below = max(len(a.way), len(b.way)) - 1 - num_shared
    return Link(kind="PIX" if num_below <= 2 else "PXB")


def active_nics(sys: Path) -> dict[str, str]:
    """NICs with a port that is up, and its link layer: "InfiniBand" or "Ethernet"."""
    active: dict[str, str] = {}
    for port in sorted((sys / "class/infiniband").glob("*/ports/*")):
        layer = _text(port / "link_layer")
        if (_text(port / "state") or "").endswith("ACTIVE") and layer is not None:
            active.setdefault(port.parts[-3], layer)
    return active


def read_nics(sys: Path) -> list[tuple[Nic, PciDevice]]:
    """InfiniBand, RoCE and EFA devices behind PCI, by name."""
    folder = sys / "class/infiniband"
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return []
    devices = [(Nic(label=name, name=name), read_device(folder / name / "device")) for name in names]
    return [(nic, device) for nic, device in devices if device is not None]
