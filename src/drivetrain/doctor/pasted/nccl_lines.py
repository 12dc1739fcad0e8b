"""NCCL's own lines (NCCL_DEBUG=INFO or WARN), whatever a launcher put in front of them; one block a host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from drivetrain.doctor.facts import ABSENT, Nccl, NcclDevice
from drivetrain.doctor.pasted.blocks import Block

# NCCL 2.2 and older left "NCCL" out; then the device's number in brackets tells its lines.
_LINE = re.compile(
    r"(?P<host><[\w .-]{1,60}>|[\w.-]{1,80}):\d{1,10}:\d{1,10}\s+(?P<device>\[-?\d{1,4}\]\s+)?"
    r"(?:[\w./]+:\d{1,6}\s+)?(?:NCCL |(?(device)|(?!)))(?P<level>INFO|WARN|ERROR)\s+(?P<text>.*)"
)
_VERSION = re.compile(r"NCCL version (?P<version>\d{1,2}\.\d{1,3}(?:\.\d{1,3})?)(?P<cuda>\+cuda[\d.]+)?")
_CUDA = re.compile(r"cudaDriverVersion (\d{4,6})\b")
_BOOTSTRAP = re.compile(
    r"Bootstrap\s*:\s*Using\s*(?:\[\d+\])?(?P<name>[\w.-]{1,32}):(?P<address>[^<\s]{1,60})"
)
_IB_USING = re.compile(r"NET/IB\s*:\s*Using\s+(?P<list>(?:\[\d{1,3}\]\S+\s*)+)")
_IB_DEVICE = re.compile(
    r"\[\d{1,3}\](?P<name>[A-Za-z][\w.-]{0,40}):(?P<port>\d{1,3})/(?P<link>IB|RoCE)", re.IGNORECASE
)
_NO_IB = re.compile(r"NET/IB\s*:\s*No device found")
_SOCKET_USING = re.compile(r"NET/Socket\s*:\s*Using\s+(?P<list>.+)")
_OLD_INTERFACE = re.compile(r"NET\s*: Using interface (?P<name>[\w.-]{1,32}):(?P<address>[^<\s]{1,60})")
_SOCKET_NAME = re.compile(r"\[\d{1,3}\](?P<name>[\w.-]{1,32}):")
_NETWORK = re.compile(r"Using network (?P<name>\S.{0,40}?)\s*$")
_PLUGIN = re.compile(
    r"(?:P2P plugin(?: v\d+)?|NET/Plugin\s*: (?:Loaded net plugin|Using)) (?P<name>[\w."
    r" -]{1,40}?)(?:\s*\(v?\d+\))?\s*$"
)
_NO_PLUGIN = re.compile(r"NET/Plugin\s*:.*(?:No plugin found|Could not find)")
_CHANNEL = re.compile(
    r"(?:Channel|Ring) \d{1,4}(?:/\d{1,3})?\s*:\s*\S+ -> \S+ (?:\[\w+\] )?via (?P<via>[A-Za-z]\S*(?:"
    r" (?:pointer|Libfabric\S*))?)"
)
_CHANNELS = re.compile(
    r"(?P<coll>\d{1,4}) coll channels,(?: \d{1,4} collnet channels,)? (?P<nvls>\d{1,4}) nvls channels"
)
_OLD_CHANNELS = re.compile(r"(?P<coll>\d{1,4}) coll channels, \d{1,4} p2p channels")
_NVLS_STATE = re.compile(r"NVLS multicast support is (?P<state>not available|available|disabled)")
_RANKS = re.compile(r"\bnranks (?P<ranks>\d{1,6})\b")
_GDR_ON = re.compile(r"GPU Direct RDMA(?: \([^)]*\))? [Ee]nabled|/GDRDMA\b")
_GDR_OFF = re.compile(r"GPU Direct RDMA(?: \([^)]*\))? [Dd]isabled")
_ENVIRONMENT = re.compile(
    r"(?P<name>NCCL_[A-Z0-9_]{2,60}) set (?:by environment )?to (?P<value>\S{1,200}?)\.?\s*$"
)
_NO_VERBS = re.compile(r"Failed to open libibverbs")
_COMPLETE = re.compile(r"Init COMPLETE|Connected all (?:rings|trees)")
_MASKED = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass
class _Host:
    """What the lines of one host have said so far."""

    line: int
    facts: dict[str, object] = field(default_factory=dict)
    devices: list[NcclDevice] = field(default_factory=list)
    has_no_device: bool = False
    sockets: list[str] = field(default_factory=list)
    transports: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)


def nccl_blocks(lines: Sequence[str]) -> list[Block]:
    """A block for each host that NCCL's lines name."""
    hosts: dict[str, _Host] = {}
    versions: dict[str, int] = {}
    for at, line in enumerate(lines):
        if (found := _VERSION.search(line)) is not None:
            versions.setdefault(found["version"], at)
        match = _LINE.search(line)
        if match is None:
            continue
        host = hosts.setdefault(match["host"], _Host(line=at))
        _take(host, match["text"].strip(), is_warning=match["level"] != "INFO")
        if found is not None:
            host.facts.setdefault("version", found["version"])
    # Rank 0 prints the version without its host's name: it stands for all that print none of their own.
    version = next(iter(versions), None)
    if version is not None and not hosts:
        return [Block(kind="NCCL", line=versions[version], nccl=Nccl(version=version))]
    return [
        Block(
            kind="NCCL",
            line=host.line,
            host=name,
            nccl=_nccl(host, tuple(versions), len(hosts)),
        )
        for name, host in hosts.items()
    ]


def _take(host: _Host, text: str, *, is_warning: bool) -> None:
    if is_warning:
        # The same warning comes from many ranks with other numbers in it.
        host.warnings.setdefault(_MASKED.sub("#", text), text[:300])
    if _NO_VERBS.search(text):
        host.facts["lacks_verbs_library"] = True
    if is_warning:
        return
    if (match := _CUDA.search(text)) is not None:
        number = int(match.group(1))
        host.facts.setdefault("cuda_driver", f"{number // 1000}.{number % 1000 // 10}")
    if (match := _BOOTSTRAP.search(text)) is not None:
        host.facts.setdefault("bootstrap", (match["name"], match["address"]))
    if (match := _IB_USING.search(text)) is not None:
        for found in _IB_DEVICE.finditer(match["list"]):
            link = "RoCE" if found["link"].lower() == "roce" else "IB"
            device = NcclDevice(name=found["name"], port=int(found["port"]), link=link)
            if device not in host.devices:
                host.devices.append(device)
    host.has_no_device = host.has_no_device or _NO_IB.search(text) is not None
    if (match := _SOCKET_USING.search(text)) is not None:
        names = [found["name"] for found in _SOCKET_NAME.finditer(match["list"])]
        host.sockets.extend(name for name in names if name not in host.sockets)
    if (match := _OLD_INTERFACE.search(text)) is not None:
        host.facts.setdefault("bootstrap", (match["name"], match["address"]))
        host.sockets.extend([match["name"]] if match["name"] not in host.sockets else [])
    if (match := _NETWORK.search(text)) is not None:
        host.facts.setdefault("network", match["name"])
    _take_plugin(host, text)
    _take_channels(host, text)
    if (match := _RANKS.search(text)) is not None:
        host.facts["num_ranks"] = max(int(match["ranks"]), _known(host.facts.get("num_ranks")))
    if (match := _ENVIRONMENT.search(text)) is not None:
        host.variables.setdefault(match["name"], match["value"].strip("'\""))


def _take_plugin(host: _Host, text: str) -> None:
    if (match := _PLUGIN.search(text)) is not None and "internal" not in match["name"]:
        host.facts.setdefault("plugin", match["name"].strip())
    elif _NO_PLUGIN.search(text):
        host.facts.setdefault("plugin", "none, NCCL's own network code")


def _take_channels(host: _Host, text: str) -> None:
    if (match := _CHANNEL.search(text)) is not None and match["via"] not in host.transports:
        host.transports.append(match["via"])
    if (match := _CHANNELS.search(text)) is not None:
        host.facts["num_channels"] = int(match["coll"])
        host.facts["num_nvls_channels"] = int(match["nvls"])
    elif (match := _OLD_CHANNELS.search(text)) is not None:
        host.facts["num_channels"] = int(match["coll"])
    if (match := _NVLS_STATE.search(text)) is not None:
        host.facts["nvls"] = match["state"] == "available"
    if _GDR_ON.search(text):
        host.facts["gpu_direct"] = True
    elif _GDR_OFF.search(text):
        host.facts.setdefault("gpu_direct", False)
    if _COMPLETE.search(text):
        host.facts["is_complete"] = True


def _nccl(host: _Host, versions: tuple[str, ...], num_hosts: int) -> Nccl:
    devices: object = ABSENT
    if host.devices:
        devices = tuple(host.devices)
    elif host.has_no_device:
        devices = ()
    values = {
        "version": versions[0] if versions else ABSENT,
        "all_versions": versions,
        "devices": devices,
        "socket_interfaces": tuple(host.sockets) or ABSENT,
        "transports": tuple(host.transports) or ABSENT,
        "variables": tuple(sorted(host.variables.items())),
        "warnings": tuple(host.warnings.values()),
        "num_hosts": num_hosts,
        **host.facts,
    }
    return Nccl(**values)  # type: ignore[arg-type]


def _known(value: object) -> int:
    return value if isinstance(value, int) else 0
