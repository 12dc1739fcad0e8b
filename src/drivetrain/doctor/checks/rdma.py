"""InfiniBand and RoCE: devices, link state, rate, subnet manager, GIDs, GPUDirect."""

from __future__ import annotations

import ipaddress

from drivetrain.doctor.facts import ABSENT, Gid, NodeFacts, RdmaPort
from drivetrain.doctor.finding import Check, Verdict, failed, not_checked, passed, warned
from drivetrain.doctor.fixes import install
from drivetrain.hardware.cuda_versions import parse_version
from drivetrain.hardware.rdma_cards import find_rdma_card
from drivetrain.spec.unknown import Unknown

AREA = "InfiniBand, RoCE"
# Below this, nodes of eight GPUs wait for the network; rates that clusters are built with are above.
_SLOW_GBPS = 40
_PHYSICAL = {
    "polling": "no cable, or the switch's port is dead or off",
    "disabled": "the port is switched off",
    "sleep": "the port sleeps",
    "portconfigurationtraining": "the link does not train: cable or transceiver",
    "linkerrorrecovery": "the link recovers from errors: cable or transceiver",
}


def _ports(facts: NodeFacts) -> tuple[RdmaPort, ...] | Verdict:
    if isinstance(facts.rdma, Unknown):
        return not_checked(facts.rdma.reason)
    if not facts.rdma:
        return not_checked("no InfiniBand or RoCE device here")
    return facts.rdma


def devices(facts: NodeFacts) -> Verdict:
    if isinstance(facts.rdma, Unknown):
        return not_checked(facts.rdma.reason)
    if facts.rdma:
        names = ", ".join(dict.fromkeys(port.device for port in facts.rdma))
        files = facts.host.verbs_devices
        if isinstance(files, tuple) and not files:
            return failed(
                f"{names}, but /dev/infiniband is empty: NCCL falls back to TCP",
                "verbs devices of this process",
                "in a container: --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1; on"
                " the host:"
                " sudo modprobe ib_uverbs",
            )
        return passed(f"{names}, {len(facts.rdma)} ports", "")
    if facts.is_live:
        return passed("none: nodes would talk over TCP", "needed only between several nodes")
    return failed("the tools find no device", "InfiniBand or RoCE devices", install(facts.system, "verbs"))


def port_state(facts: NodeFacts) -> Verdict:
    ports = _ports(facts)
    if isinstance(ports, Verdict):
        return ports
    known = [port for port in ports if isinstance(port.state, str)]
    if not known:
        return not_checked("no port's state is told")
    down = [port for port in known if port.state != "active"]
    if not down:
        return passed(f"all {len(known)} ports active", "every cabled port Active, LinkUp")
    found = "; ".join(f"{port.label}: {_state(port)}" for port in down[:8])
    if len(down) == len(known):
        return failed(f"no port is active; {found}", "Active, LinkUp", _state_fix(down))
    return warned(
        f"{len(known) - len(down)} of {len(known)} ports active; {found}",
        "every cabled port Active",
        _state_fix(down),
    )


def _state(port: RdmaPort) -> str:
    physical = port.physical if isinstance(port.physical, str) else ""
    why = _PHYSICAL.get(physical, "")
    if port.state in ("init", "initialize") and not why:
        why = "the link is up, but no subnet manager has set it up"
    return f"{port.state}{f'/{physical}' if physical else ''}{f' ({why})' if why else ''}"


def _state_fix(down: list[RdmaPort]) -> str:
    first = down[0]
    fixes = []
    if any(port.physical == "polling" for port in down):
        fixes.append("check the cable and the switch's port (ibportstate, iblinkinfo)")
    disabled = next((port for port in down if port.physical == "disabled"), None)
    if disabled is not None:
        fixes.append(
            f"switch the port on: sudo ibportstate -C {disabled.device} -P {disabled.port} 1 enable,"
            " or set its link type: sudo mlxconfig -d DEVICE query LINK_TYPE_P1"
        )
    if any(port.state in ("init", "initialize") for port in down):
        fixes.append("start a subnet manager")
    return "; ".join(fixes) or f"ibstat {first.device}; ip link set INTERFACE up for RoCE"


def subnet_manager(facts: NodeFacts) -> Verdict:
    ports = _ports(facts)
    if isinstance(ports, Verdict):
        return ports
    fabric = [port for port in ports if port.link_layer == "infiniband"]
    if not fabric:
        layers = {port.link_layer for port in ports if isinstance(port.link_layer, str)}
        return not_checked("Ethernet needs none" if layers else "no port's link layer is told")
    # A port that is down sees none; that matters where no other port tells.
    up = [port for port in fabric if port.state != "down"]
    known = [port for port in up or fabric if isinstance(port.sm_lid, int)]
    if not known:
        return not_checked("the subnet manager's LID is not told")
    without = [port for port in known if port.sm_lid == 0]
    if not without:
        return passed(f"LID {known[0].sm_lid}", "a subnet manager (SM lid not 0)")
    text = ", ".join(port.label for port in without)
    return failed(
        f"no subnet manager seen by {text} (SM lid 0)",
        "a subnet manager on the fabric (SM lid not 0)",
        f"start one on the switch, or on one node: {install(facts.system, 'subnet manager')}"
        " && sudo systemctl enable --now opensm (links that are down see none either)",
    )


def rate(facts: NodeFacts) -> Verdict:
    ports = _ports(facts)
    if isinstance(ports, Verdict):
        return ports
    up = [port for port in ports if port.state in ("active", ABSENT)]
    known = [port for port in up if isinstance(port.rate_gbps, float)]
    if not known:
        return not_checked("no active port's rate is told")
    slow = [text for port in known if (text := _slow(port)) is not None]
    expected = f"at least {_SLOW_GBPS} Gb/s, at least half of what the card can, equal on all ports of a kind"
    fix = "look at cable, transceiver, and the switch port's speed: mlxlink -d DEVICE, ethtool INTERFACE"
    if slow:
        return warned("; ".join(slow), expected, fix)
    by_kind: dict[object, set[float]] = {}
    for port in known:
        by_kind.setdefault(port.card, set()).add(port.rate_gbps if isinstance(port.rate_gbps, float) else 0.0)
    uneven = next(
        (rates for card, rates in by_kind.items() if isinstance(card, str) and len(rates) > 1), None
    )
    if uneven is not None:
        return warned(f"ports of one kind of card run at {sorted(uneven)} Gb/s", expected, fix)
    return passed(
        f"{', '.join(f'{rate:g}' for rate in sorted({float(str(port.rate_gbps)) for port in known}))} Gb/s",
        expected,
    )


def _slow(port: RdmaPort) -> str | None:
    assert isinstance(port.rate_gbps, float)
    lanes = f" ({port.lanes}X {port.lane_speed})" if isinstance(port.lanes, int) else ""
    card = find_rdma_card(port.card) if isinstance(port.card, str) else None
    if card is not None and port.rate_gbps < card[1] / 2:
        return f"{port.label}: only {port.rate_gbps:g} Gb/s{lanes}; {card[0]} can {card[1]}"
    if port.rate_gbps < _SLOW_GBPS and (card is None or card[1] >= 2 * _SLOW_GBPS):
        return f"{port.label}: only {port.rate_gbps:g} Gb/s{lanes}"
    if port.lanes == 1 and port.link_layer == "infiniband" and port.rate_gbps < 100:
        return f"{port.label}: one lane only, {port.rate_gbps:g} Gb/s{lanes}"
    return None


def mtu(facts: NodeFacts) -> Verdict:
    ports = _ports(facts)
    if isinstance(ports, Verdict):
        return ports
    known = [
        (port, port.mtu, port.mtu_max)
        for port in ports
        if port.state in ("active", ABSENT) and isinstance(port.mtu, int) and isinstance(port.mtu_max, int)
    ]
    if not known:
        return not_checked("no active port's MTU is told")
    small = [f"{port.label}: {now} of {best}" for port, now, best in known if now < min(best, 4096)]
    expected = "the largest MTU (4096), equal on every node"
    if small:
        return warned(
            f"MTU {'; '.join(small[:8])}",
            expected,
            "RoCE: sudo ip link set INTERFACE mtu 9000, on the switch too; InfiniBand: the subnet"
            " manager's partition",
        )
    return passed(f"MTU {', '.join(sorted({str(now) for _, now, _ in known}))}", expected)


def gid(facts: NodeFacts) -> Verdict:
    ports = _ports(facts)
    if isinstance(ports, Verdict):
        return ports
    ethernet = [port for port in ports if port.link_layer == "ethernet" and port.state in ("active", ABSENT)]
    if not ethernet:
        if any(isinstance(port.link_layer, str) for port in ports):
            return not_checked("no active Ethernet port: InfiniBand needs no GID index")
        return not_checked("no port's link layer is told")
    tables = [port for port in ethernet if isinstance(port.gids, tuple) and port.gids]
    chosen = _chosen_index(facts)
    if tables:
        return _by_tables(tables, chosen, _nccl_version(facts))
    local = [
        port for port in ethernet if isinstance(port.default_gid, str) and _is_link_local(port.default_gid)
    ]
    if local:
        return warned(
            f"{', '.join(port.label for port in local)}: the default GID is link-local (fe80::), which"
            " is not routed:"
            " RoCE between nodes needs the index of an IPv4 RoCE v2 entry",
            "NCCL_IB_GID_INDEX of an IPv4 RoCE v2 entry (NCCL ≥ 2.21 looks for one by itself)",
            "show_gids lists them; then export NCCL_IB_GID_INDEX=3 (often 3) on every node",
        )
    return not_checked("the GID table is not told: show_gids, or ibv_devinfo -v")


def _by_tables(ports: list[RdmaPort], chosen: int | None, nccl: tuple[int, ...] | None) -> Verdict:
    best = {port.label: [entry.index for entry in _entries(port) if _is_routed_v2(entry)] for port in ports}
    expected = "an IPv4 RoCE v2 GID on every port, at the same index"
    without = [label for label, found in best.items() if not found]
    if without:
        return failed(
            f"{', '.join(without)}: no RoCE v2 GID with an IPv4 address",
            expected,
            "give the interface an address: sudo ip addr add ADDRESS/PREFIX dev INTERFACE; show_gids"
            " shows the index",
        )
    common = set.intersection(*(set(found) for found in best.values()))
    if chosen is not None:
        if chosen in common:
            return passed(f"NCCL_IB_GID_INDEX={chosen} is IPv4 RoCE v2 on every port", expected)
        return failed(
            f"NCCL_IB_GID_INDEX={chosen} is no IPv4 RoCE v2 entry; those are {best}",
            expected,
            f"export NCCL_IB_GID_INDEX={min(common)}" if common else "unset NCCL_IB_GID_INDEX",
        )
    if common and (min(common) == 0 or (nccl is not None and nccl >= (2, 21))):
        return passed(f"IPv4 RoCE v2 at index {min(common)}; NCCL finds it by itself", expected)
    if not common:
        return warned(
            f"IPv4 RoCE v2 entries at different indices: {best}",
            expected,
            "NCCL ≥ 2.21 chooses for each port",
        )
    return warned(
        f"IPv4 RoCE v2 at index {min(common)}, and NCCL_IB_GID_INDEX is not set",
        expected,
        f"export NCCL_IB_GID_INDEX={min(common)} (not needed from NCCL 2.21 on)",
    )


def _entries(port: RdmaPort) -> tuple[Gid, ...]:
    return port.gids if isinstance(port.gids, tuple) else ()


def _is_routed_v2(entry: Gid) -> bool:
    address = _address(entry.gid)
    return "v2" in entry.kind.lower() and address is not None and address.ipv4_mapped is not None


def _is_link_local(text: str) -> bool:
    address = _address(text)
    return address is not None and address.is_link_local


def _address(text: str) -> ipaddress.IPv6Address | None:
    try:
        return ipaddress.IPv6Address(text)
    except ValueError:
        return None


def _chosen_index(facts: NodeFacts) -> int | None:
    variables: list[tuple[str, str]] = []
    if isinstance(facts.host.nccl_variables, tuple):
        variables += facts.host.nccl_variables
    if not isinstance(facts.nccl, Unknown):
        variables += facts.nccl.variables
    text = dict(variables).get("NCCL_IB_GID_INDEX", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else None


def _nccl_version(facts: NodeFacts) -> tuple[int, ...] | None:
    if isinstance(facts.torch.nccl, str):
        return parse_version(facts.torch.nccl)
    if not isinstance(facts.nccl, Unknown) and isinstance(facts.nccl.version, str):
        return parse_version(facts.nccl.version)
    return None


def gpu_direct(facts: NodeFacts) -> Verdict:
    if not isinstance(facts.nccl, Unknown) and isinstance(facts.nccl.gpu_direct, bool):
        if facts.nccl.gpu_direct:
            return passed("NCCL: GPUDirect RDMA is on", "on where GPU and NIC hang on one PCIe switch")
        return warned(
            "NCCL: GPUDirect RDMA is off: data goes through host memory", "on", "sudo modprobe nvidia_peermem"
        )
    ports = _ports(facts)
    if isinstance(ports, Verdict):
        return ports
    if facts.gpus == ():
        return not_checked("no GPU here")
    loaded = facts.host.peermem_loaded
    if isinstance(loaded, Unknown):
        return not_checked(loaded.reason)
    if loaded:
        return passed("nvidia_peermem is loaded", "nvidia_peermem, or DMA-BUF with the open kernel modules")
    if facts.driver.has_open_modules is True:
        return passed("open kernel modules: DMA-BUF serves without nvidia_peermem", "GPUDirect RDMA")
    return warned(
        "nvidia_peermem is not loaded: data between nodes goes through host memory",
        "nvidia_peermem, or DMA-BUF with the open kernel modules (kernel ≥ 5.12)",
        "sudo modprobe nvidia_peermem && echo nvidia_peermem | sudo tee"
        " /etc/modules-load.d/nvidia-peermem.conf",
    )


CHECKS = (
    Check(id="rdma_devices", area=AREA, judge=devices),
    Check(id="rdma_port_state", area=AREA, judge=port_state),
    Check(id="rdma_subnet_manager", area=AREA, judge=subnet_manager),
    Check(id="rdma_rate", area=AREA, judge=rate),
    Check(id="rdma_mtu", area=AREA, judge=mtu),
    Check(id="rdma_gid", area=AREA, judge=gid),
    Check(id="gpu_direct", area=AREA, judge=gpu_direct),
)
