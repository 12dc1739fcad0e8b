"""InfiniBand and RoCE ports of the live node, by /sys/class/infiniband."""

from __future__ import annotations

import re
from pathlib import Path

from drivetrain.doctor.facts import ABSENT, Gid, RdmaPort
from drivetrain.spec.unknown import Unknown

_NO_GID = re.compile(r"^[0:]*$")
_NUM_GIDS = 256


def read_rdma(root: Path = Path("/")) -> tuple[RdmaPort, ...]:
    """Every port; an empty tuple where the kernel knows no such device."""
    devices = sorted((root / "sys/class/infiniband").glob("*"))
    return tuple(
        _port(device, port)
        for device in devices
        for port in sorted((device / "ports").glob("[0-9]*"), key=lambda path: int(path.name))
    )


def _port(device: Path, folder: Path) -> RdmaPort:
    rate = re.match(r"([\d.]+) Gb/sec(?: \((\d+)X (\w+)\))?", _text(folder / "rate") or "")
    gids = _gids(folder)
    return RdmaPort(
        device=device.name,
        port=int(folder.name),
        state=_word(folder / "state"),
        physical=_word(folder / "phys_state"),
        rate_gbps=float(rate.group(1)) if rate else Unknown("the rate cannot be read"),
        lanes=int(rate.group(2)) if rate and rate.group(2) else ABSENT,
        lane_speed=rate.group(3) if rate and rate.group(3) else ABSENT,
        link_layer=(_text(folder / "link_layer") or "").lower() or Unknown("no link layer"),
        lid=_number(folder / "lid"),
        sm_lid=_number(folder / "sm_lid"),
        default_gid=_text(folder / "gids/0") or ABSENT,
        gids=gids,
        card=_text(device / "hca_type") or ABSENT,
        firmware=_text(device / "fw_ver") or ABSENT,
        interface=_text(folder / "gid_attrs/ndevs/0") or ABSENT,
    )


def _gids(folder: Path) -> tuple[Gid, ...]:
    found = []
    for index in range(_NUM_GIDS):
        gid = _text(folder / f"gids/{index}")
        if gid is None:
            break
        if not _NO_GID.match(gid):
            kind = _text(folder / f"gid_attrs/types/{index}") or ""
            found.append(Gid(index=index, gid=gid, kind={"IB/RoCE v1": "RoCE v1"}.get(kind, kind)))
    return tuple(found)


def _word(path: Path) -> str | Unknown:
    """`4: ACTIVE` → active."""
    text = _text(path)
    return text.partition(":")[2].strip().lower() if text else Unknown(f"{path.name} cannot be read")


def _number(path: Path) -> int | Unknown:
    text = _text(path)
    try:
        return int(text, 16) if text else Unknown(f"{path.name} cannot be read")
    except ValueError:
        return Unknown(f"{path.name} is {text!r}")


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # an empty GID's type cannot be read: the kernel says EINVAL
        return None
