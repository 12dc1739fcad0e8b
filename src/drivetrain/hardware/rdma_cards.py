"""The fastest port of a network card by its part number, and what each InfiniBand lane carries.

Sources: NVIDIA (Mellanox) adapter data sheets and the kernel's mlx4/mlx5 PCI device tables (part number is
the PCI device id in decimal); InfiniBand Architecture Specification for the lanes.
"""

from __future__ import annotations

from typing import Final

# PCI device id in decimal → (name, Gb/s of the fastest port of the family).
_CARDS: Final[dict[int, tuple[str, int]]] = {
    4099: ("ConnectX-3", 56),
    4103: ("ConnectX-3 Pro", 56),
    4113: ("Connect-IB", 56),
    4115: ("ConnectX-4", 100),
    4117: ("ConnectX-4 Lx", 50),
    4119: ("ConnectX-5", 100),
    4121: ("ConnectX-5 Ex", 100),
    4123: ("ConnectX-6", 200),
    4125: ("ConnectX-6 Dx", 200),
    4127: ("ConnectX-6 Lx", 50),
    4129: ("ConnectX-7", 400),
    4131: ("ConnectX-8", 800),
    41682: ("BlueField", 100),
    41686: ("BlueField-2", 200),
    41692: ("BlueField-3", 400),
}

# Names of lane speeds → Gb/s of one lane (data rate as tools print it).
LANE_GBPS: Final[dict[str, float]] = {
    "SDR": 2.5,
    "DDR": 5,
    "QDR": 10,
    "FDR10": 10,
    "FDR": 14,
    "EDR": 25,
    "HDR": 50,
    "NDR": 100,
    "XDR": 200,
}


def find_rdma_card(part: str) -> tuple[str, int] | None:
    """`"MT4123"` or `"4123"` → ("ConnectX-6", 200); None for a card not in the table.

    Cards of a family are also sold with slower ports: a port at half the rate may be what was bought.
    """
    digits = part.upper().removeprefix("MT").strip()
    return _CARDS.get(int(digits)) if digits.isascii() and digits.isdigit() and len(digits) < 8 else None
