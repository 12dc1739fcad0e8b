"""The one table of links: their order, and what NVLink and PCIe carry by generation, with sources.

Order and codes are those of `nvidia-smi topo -m` (its legend, and nvmlGpuTopologyLevel_t in nvml.h). Rates
are GB/s in one direction. "Useful" rates are what NCCL plans with, from its src/graph/topo.h (2.27): SM60 18,
SM70 20, SM80 20, SM86 12, SM90 20.6, SM100 40.1 a link; PCI_BW 12 for PCIe 3 x16; INTEL_P2P_OVERHEAD 6/5;
BDW_QPI 6 to ERP_QPI 40 between sockets. They are planning figures, not measurements of a machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

GB = 1e9

MAX_NVLINKS = 18
"""Links of one GPU in NVLink 4 and 5, the most there are (NVIDIA's H100 and Blackwell white papers)."""


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """`weight`: one-way GB/s that sums in placement count with; only its order and rough size matter."""

    order: int
    weight: int
    meaning: str


# Worst first. PSB is the on-board switch of dual-GPU cards (K80); C2C the link of a superchip.
_KINDS: dict[str, _Kind] = {
    "SYS": _Kind(order=1, weight=6, meaning="between NUMA nodes, over the inter-socket link"),
    "NODE": _Kind(order=2, weight=8, meaning="between host bridges of one NUMA node"),
    "PHB": _Kind(order=3, weight=9, meaning="through one PCIe host bridge, the CPU"),
    "PXB": _Kind(order=4, weight=11, meaning="through several PCIe switches"),
    "PIX": _Kind(order=5, weight=12, meaning="through one PCIe switch"),
    "PSB": _Kind(order=6, weight=13, meaning="through the card's own PCIe switch"),
    "C2C": _Kind(order=7, weight=18, meaning="chip to chip"),
}
_NVLINK_ORDER = 100
_NVLINK_WEIGHT = 20

_OLD_NAMES = {"SOC": "SYS"}
"""Drivers before 384 wrote SOC for what is SYS now."""

SAME_NUMA = frozenset({"NODE", "PHB", "PXB", "PIX", "PSB"})
"""Kinds that stay within a NUMA node, by the legend."""

PCIE_SWITCH = frozenset({"PXB", "PIX", "PSB"})
"""Kinds that do not pass the CPU."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """How two devices are joined. `num_nvlinks` is 0 for every kind but NV."""

    kind: str
    num_nvlinks: int = 0

    @property
    def order(self) -> int:
        """More is better; any NVLink is better than any PCIe path. 0 is kept for "unknown"."""
        return _NVLINK_ORDER + self.num_nvlinks if self.num_nvlinks else _KINDS[self.kind].order

    @property
    def weight(self) -> int:
        """What the link adds to the sum that placement maximises."""
        return _NVLINK_WEIGHT * self.num_nvlinks if self.num_nvlinks else _KINDS[self.kind].weight

    @property
    def meaning(self) -> str:
        if self.num_nvlinks:
            return f"{self.num_nvlinks} bonded NVLink{'s' if self.num_nvlinks > 1 else ''}"
        return _KINDS[self.kind].meaning

    def __str__(self) -> str:
        return f"NV{self.num_nvlinks}" if self.num_nvlinks else self.kind


def nvlink(num_nvlinks: int) -> Link:
    return Link(kind="NV", num_nvlinks=num_nvlinks)


def read_link(code: str) -> Link | None:
    """The link that a cell of the matrix names, or None: `NV18`, `PIX`, and `SOC` of old drivers."""
    if code.startswith("NV"):
        digits = code[2:]
        is_count = digits.isascii() and digits.isdigit() and not digits.startswith("0")
        return nvlink(int(digits)) if is_count and int(digits) <= MAX_NVLINKS else None
    kind = _OLD_NAMES.get(code, code)
    return Link(kind=kind) if kind in _KINDS else None


CELL_CODES = (*_KINDS, *_OLD_NAMES)
"""What a cell may hold besides X and NVn."""


@dataclass(frozen=True, kw_only=True)
class NvlinkGeneration:
    """One link of this generation: GB/s one way, on the wire and as NCCL plans with; most links of a GPU."""

    name: str
    wire_gb_per_s: float
    useful_gb_per_s: float
    max_links: int


# Wire rates and link counts: NVIDIA's white papers of P100, V100, A100, GA102, H100, Blackwell.
_NV1 = NvlinkGeneration(name="NVLink 1", wire_gb_per_s=20, useful_gb_per_s=18.0, max_links=4)
_NV2 = NvlinkGeneration(name="NVLink 2", wire_gb_per_s=25, useful_gb_per_s=20.0, max_links=6)
_NV3 = NvlinkGeneration(name="NVLink 3", wire_gb_per_s=25, useful_gb_per_s=20.0, max_links=12)
_NV3_GA102 = NvlinkGeneration(
    name="NVLink 3 (GA102)", wire_gb_per_s=14.0625, useful_gb_per_s=12.0, max_links=4
)
_NV4 = NvlinkGeneration(name="NVLink 4", wire_gb_per_s=25, useful_gb_per_s=20.6, max_links=18)
_NV5 = NvlinkGeneration(name="NVLink 5", wire_gb_per_s=50, useful_gb_per_s=40.1, max_links=18)
NVLINK_GENERATIONS = (_NV1, _NV2, _NV3, _NV3_GA102, _NV4, _NV5)

# By the product's name, as NVML gives it; the first that fits.
_BY_NAME: tuple[tuple[str, NvlinkGeneration], ...] = (
    (r"\bP100\b", _NV1),
    (r"\bV100S?\b|\bGV100\b|TITAN V\b|RTX 2080|TITAN RTX|Quadro RTX|\bRTX 8000\b", _NV2),
    (r"\bA100\b|\bA800\b|\bA30\b", _NV3),
    (r"\bA6000\b|\bA5500\b|\bA5000\b|\bA4500\b|\bA40\b|RTX 3090", _NV3_GA102),
    (r"\bH100\b|\bH200\b|\bH800\b|\bH20\b|\bGH200\b", _NV4),
    (r"\bB100\b|\bB200\b|\bB300\b|\bGB200\b|\bGB300\b", _NV5),
)


def nvlink_generation(name: str) -> NvlinkGeneration | None:
    """The NVLink generation of a GPU by its product name; None where the table does not say."""
    return next((generation for pattern, generation in _BY_NAME if re.search(pattern, name)), None)


# GT/s a lane and the share that is data: 8b/10b, then 128b/130b, then flits (PCI-SIG base specifications).
_PCIE_LANE_GB_PER_S = {
    1: 2.5 * 0.8 / 8,
    2: 5.0 * 0.8 / 8,
    3: 8.0 * 128 / 130 / 8,
    4: 16.0 * 128 / 130 / 8,
    5: 32.0 * 128 / 130 / 8,
    6: 64.0 * 242 / 256 / 8,
}
PCIE_USEFUL_SHARE = 12.0 / (16 * _PCIE_LANE_GB_PER_S[3])
"""NCCL plans with 12 GB/s of the 15.75 of PCIe 3 x16; the same share is taken for the others."""

CPU_PEER_OVERHEAD = 6 / 5
"""A CPU cuts peer traffic into 64-byte packets (NCCL: INTEL_P2P_OVERHEAD)."""

SOCKET_GB_PER_S = (6.0, 40.0)
"""Between sockets, slowest and fastest that NCCL knows (Broadwell's QPI, Emerald Rapids' UPI)."""


@dataclass(frozen=True, kw_only=True)
class PcieSlot:
    """What a GPU's slot can do: generation 1 to 6, lanes."""

    generation: int
    width: int

    @property
    def wire_gb_per_s(self) -> float | None:
        """One way; None for a generation that the table does not know."""
        lane = _PCIE_LANE_GB_PER_S.get(self.generation)
        return None if lane is None else lane * self.width

    def __str__(self) -> str:
        return f"PCIe {self.generation} x{self.width}"


ASSUMED_SLOTS = (PcieSlot(generation=3, width=16), PcieSlot(generation=5, width=16))
"""The range that stands in, and is said to, where a slot is unknown."""
