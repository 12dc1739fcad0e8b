"""`ibstat`, `ibstatus`, `ibv_devinfo` and `show_gids`: the ports of InfiniBand and RoCE devices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from drivetrain.doctor.facts import ABSENT, Gid, RdmaPort
from drivetrain.doctor.pasted.blocks import Block
from drivetrain.hardware.rdma_cards import LANE_GBPS
from drivetrain.spec.unknown import Unknown

_NAME = r"[A-Za-z][\w.-]{0,40}"
_CA = re.compile(rf"^\s*CA '(?P<name>{_NAME})'")
_PORT = re.compile(r"^\s*Port (?P<port>\d{1,3}):\s*$")
_STATUS = re.compile(
    rf"Infiniband device '(?P<name>{_NAME})' port (?P<port>\d{{1,3}}) status:", re.IGNORECASE
)
_HCA = re.compile(rf"^\s*hca_id:\s*(?P<name>{_NAME})\s*$")
_VERBS_PORT = re.compile(r"^\s*port:\s*(?P<port>\d{1,3})\s*$")
_PAIR = re.compile(r"^\s*(?P<key>[A-Za-z][A-Za-z0-9_ ]*?)\s*:\s*(?P<value>.*?)\s*$")
_RATE = re.compile(
    r"(?P<rate>\d{1,5}(?:\.\d{1,3})?)(?:\s*Gb/?(?:sec|s))?(?:\s*\((?P<lanes>\d{1,2})X(?:\s+(?P<speed>\w+))?\))?"
)
_VERBS_GID = re.compile(
    r"^\s*GID\[\s*(?P<index>\d{1,4})\]:\s*(?P<gid>[0-9a-fA-F:.]{3,45})(?:,\s*(?P<kind>RoCE v[12]|IB.*))?\s*$"
)
_GIDS_ROW = re.compile(
    rf"^\s*(?P<device>{_NAME})\s+(?P<port>\d{{1,3}})\s+(?P<index>\d{{1,4}})\s+(?P<gid>[0-9a-fA-F:]{{6,45}})"
    r"(?:\s+(?P<address>\d{1,3}(?:\.\d{1,3}){3}))?\s+(?P<kind>v[12])(?:\s+(?P<interface>\S+))?\s*$"
)
_IBDEV = re.compile(
    rf"^\s*(?P<device>{_NAME})\s+port\s+(?P<port>\d{{1,3}})\s+==>\s+(?P<interface>[\w.-]{{1,40}})\s+\((?P<state>Up|Down)\)"
)
_WORD = re.compile(r"(?:\d{1,2}:\s*)?(?:PORT_)?(?P<word>[A-Za-z][A-Za-z_]*)")


def rdma_blocks(lines: Sequence[str]) -> list[Block]:
    """A block for each tool whose output is in the text."""
    found = (
        ("ibstat", _ibstat(lines)),
        ("ibstatus", _ibstatus(lines)),
        ("ibv_devinfo", _ibv_devinfo(lines)),
    )
    blocks = [Block(kind=kind, line=line, rdma=tuple(ports)) for kind, (line, ports) in found if ports]
    gids = _gid_ports(lines)
    if gids:
        blocks.append(Block(kind="show_gids", line=0, rdma=tuple(gids)))
    blocks.extend(
        Block(kind="rdma tools", line=at, rdma=())
        for at, line in enumerate(lines)
        if re.search(
            r"^\s*No IB devices found|Failed to get IB devices list|ibstat: can't get|^\s*No devices?"
            r" found in /sys/class/infiniband",
            line,
        )
    )
    return blocks


def _ibstat(lines: Sequence[str]) -> tuple[int, list[RdmaPort]]:
    ports: list[RdmaPort] = []
    start, name, card, firmware = 0, None, ABSENT, ABSENT
    is_in_port = False
    for at, line in enumerate(lines):
        if (match := _CA.match(line)) is not None:
            start = start or at
            name, card, firmware, is_in_port = match["name"], ABSENT, ABSENT, False
        elif name is None:
            continue
        elif (match := _PORT.match(line)) is not None:
            ports.append(RdmaPort(device=name, port=int(match["port"]), card=card, firmware=firmware))
            is_in_port = True
        elif (match := _PAIR.match(line)) is not None:
            key, value = match["key"].lower(), match["value"]
            if not is_in_port:
                card = value if key == "ca type" and value else card  # type: ignore[assignment]
                firmware = value if key == "firmware version" and value else firmware  # type: ignore[assignment]
            elif ports:
                ports[-1] = _with(ports[-1], key, value)
        elif line.strip():
            name, is_in_port = None, False  # something else begins
    return start, ports


def _ibstatus(lines: Sequence[str]) -> tuple[int, list[RdmaPort]]:
    ports: list[RdmaPort] = []
    start, is_open = 0, False
    for at, line in enumerate(lines):
        if (match := _STATUS.search(line)) is not None:
            start = start or at
            ports.append(RdmaPort(device=match["name"], port=int(match["port"])))
            is_open = True
        elif is_open and (match := _PAIR.match(line)) is not None:
            ports[-1] = _with(ports[-1], match["key"].lower(), match["value"])
        elif line.strip():
            is_open = False
    return start, ports


def _ibv_devinfo(lines: Sequence[str]) -> tuple[int, list[RdmaPort]]:
    ports: list[RdmaPort] = []
    start, name = 0, None
    about: dict[str, str] = {}
    is_in_port = False
    for at, line in enumerate(lines):
        if (match := _HCA.match(line)) is not None:
            start = start or at
            name, about, is_in_port = match["name"], {}, False
        elif name is None:
            continue
        elif (match := _VERBS_PORT.match(line)) is not None:
            card, firmware = about.get("vendor_part_id"), about.get("fw_ver")
            ports.append(
                RdmaPort(
                    device=name,
                    port=int(match["port"]),
                    card=f"MT{card}" if card and card.isdigit() else ABSENT,
                    firmware=firmware or ABSENT,
                )
            )
            is_in_port = True
        elif is_in_port and (match := _VERBS_GID.match(line)) is not None:
            before = ports[-1].gids
            gid = Gid(index=int(match["index"]), gid=match["gid"].lower(), kind=match["kind"] or "")
            ports[-1] = replace(ports[-1], gids=(*(before if isinstance(before, tuple) else ()), gid))
        elif (match := _PAIR.match(line)) is not None:
            if is_in_port:
                ports[-1] = _with(ports[-1], match["key"].lower(), match["value"])
            else:
                about[match["key"].lower()] = match["value"]
    return start, ports


def _gid_ports(lines: Sequence[str]) -> list[RdmaPort]:
    """From `show_gids` and `ibdev2netdev`: GID tables and names of network interfaces, nothing else."""
    ports: dict[tuple[str, int], RdmaPort] = {}
    for line in lines:
        if (match := _GIDS_ROW.match(line)) is not None:
            key = (match["device"], int(match["port"]))
            port = ports.get(key, RdmaPort(device=key[0], port=key[1]))
            before = port.gids if isinstance(port.gids, tuple) else ()
            gid = (match["address"] and f"::ffff:{match['address']}") or match["gid"].lower()
            entry = Gid(index=int(match["index"]), gid=gid, kind=f"RoCE {match['kind']}")
            ports[key] = replace(port, gids=(*before, entry), interface=match["interface"] or port.interface)
        elif (match := _IBDEV.match(line)) is not None:
            key = (match["device"], int(match["port"]))
            port = ports.get(key, RdmaPort(device=key[0], port=key[1]))
            ports[key] = replace(port, interface=match["interface"])
    return list(ports.values())


def _with(port: RdmaPort, key: str, value: str) -> RdmaPort:
    if key == "state":
        return replace(port, state=_word(value, "the port's state"))
    if key in ("physical state", "phys state", "phys_state"):
        return replace(port, physical=_word(value, "the physical state"))
    if key == "rate":
        return _with_rate(port, value)
    if key in ("link layer", "link_layer"):
        return replace(port, link_layer=value.lower() or Unknown("the tool prints no link layer"))
    if key in ("base lid", "port_lid"):
        return replace(port, lid=_integer(value))
    if key in ("sm lid", "sm_lid"):
        return replace(port, sm_lid=_integer(value))
    if key == "default gid":
        return replace(port, default_gid=value.lower())
    if key == "active_mtu":
        return replace(port, mtu=_integer(value.split("(")[0]))
    if key == "max_mtu":
        return replace(port, mtu_max=_integer(value.split("(")[0]))
    if key == "active_width":
        lanes = re.match(r"(\d{1,2})X", value)
        return _rate_of_lanes(replace(port, lanes=int(lanes.group(1)) if lanes else ABSENT))
    if key == "active_speed":
        speed = re.match(r"(\d{1,3}(?:\.\d)?)\s*Gbps", value)
        return _rate_of_lanes(port, lane_gbps=float(speed.group(1)) if speed else None)
    return port


def _with_rate(port: RdmaPort, value: str) -> RdmaPort:
    match = _RATE.match(value)
    if match is None:
        return replace(port, rate_gbps=Unknown(f"the rate cannot be read from {value[:40]!r}"))
    lanes, speed = match["lanes"], match["speed"]
    return replace(
        port,
        rate_gbps=float(match["rate"]),
        lanes=int(lanes) if lanes else ABSENT,
        lane_speed=speed.upper() if speed and speed.upper() in LANE_GBPS else ABSENT,
    )


def _rate_of_lanes(port: RdmaPort, lane_gbps: float | None = None) -> RdmaPort:
    """`ibv_devinfo -v` prints lanes and the speed of each, in this order."""
    if lane_gbps is not None and isinstance(port.lanes, int):
        return replace(port, rate_gbps=lane_gbps * port.lanes)
    return port


def _word(value: str, what: str) -> str | Unknown:
    match = _WORD.match(value)
    return match["word"].lower().replace("_", "") if match else Unknown(f"{what} cannot be read")


def _integer(value: str) -> int | Unknown:
    text = value.strip()
    try:
        return int(text, 16) if text.lower().startswith("0x") else int(text)
    except ValueError:
        return Unknown(f"no number: {text[:20]!r}")
