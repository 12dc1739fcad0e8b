"""What NCCL's start-up lines tell: the network it took, how GPUs reach each other, its warnings."""

from __future__ import annotations

import re

from drivetrain.doctor.checks.nccl_warnings import explain_warning
from drivetrain.doctor.facts import ABSENT, Nccl, NodeFacts
from drivetrain.doctor.finding import Check, Status, Verdict, failed, not_checked, passed, warned
from drivetrain.doctor.fixes import install, install_driver
from drivetrain.spec.unknown import Unknown

AREA = "NCCL's start"
_IPOIB = re.compile(r"^ib(?:p|s|o|P|\d)")
_NOT_ROUTED = re.compile(r"^(?:lo|docker|br-|virbr|veth|cni|flannel|cali|tun|tailscale|podman)")
_VERBS_IN_CONTAINER = (
    "in a container: --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 (Kubernetes: the"
    " RDMA device"
    " plugin); on the host: ls /dev/infiniband, ibv_devinfo, sudo modprobe ib_uverbs; {install}"
)


def _nccl(facts: NodeFacts) -> Nccl | Verdict:
    return not_checked("no start-up lines of NCCL") if isinstance(facts.nccl, Unknown) else facts.nccl


def network(facts: NodeFacts) -> Verdict:
    nccl = _nccl(facts)
    if isinstance(nccl, Verdict):
        return nccl
    interface = nccl.bootstrap[0] if isinstance(nccl.bootstrap, tuple) else None
    fix = _VERBS_IN_CONTAINER.format(install=install(facts.system, "verbs"))
    expected = "InfiniBand or RoCE devices that NCCL sees, where the host has them"
    has_none = nccl.devices == () or nccl.lacks_verbs_library is True
    if has_none and interface is not None and _IPOIB.match(interface):
        return failed(
            f"the host has InfiniBand (NCCL starts over {interface}, an IPoIB interface), but verbs"
            " devices are not"
            " visible to the process (NET/IB : No device found): NCCL falls back to TCP",
            expected,
            fix,
        )
    if dict(nccl.variables).get("NCCL_IB_DISABLE") == "1":
        return warned(
            "NCCL_IB_DISABLE=1: InfiniBand and RoCE are left out", expected, "unset NCCL_IB_DISABLE"
        )
    if isinstance(nccl.devices, tuple) and nccl.devices:
        if nccl.network == "Socket":
            return warned("verbs devices are there, but NCCL uses network Socket", expected, fix)
        told = ", ".join(f"{device.name}/{device.link}" for device in nccl.devices[:8])
        return passed(f"network {_shown(nccl.network, nccl.plugin)} over {told}", expected)
    if has_none or nccl.network == "Socket":
        told = (
            f"NCCL finds no verbs device{f' and starts over {interface}' if interface else ''}: TCP"
            " between nodes"
        )
        if nccl.num_hosts > 1:
            return warned(told, expected, fix)
        return passed(f"{told}; within one node that does not matter", expected)
    if isinstance(nccl.network, str):
        return passed(f"network {nccl.network}", expected)
    return not_checked("the lines do not say which network NCCL took")


def _shown(*values: str | Unknown) -> str:
    return next((value for value in values if isinstance(value, str)), "IB")


def roce_route(facts: NodeFacts) -> Verdict:
    nccl = _nccl(facts)
    if isinstance(nccl, Verdict):
        return nccl
    devices = nccl.devices if isinstance(nccl.devices, tuple) else ()
    roce = [device.name for device in devices if device.link == "RoCE"]
    if not roce:
        return not_checked("no RoCE device in NCCL's lines")
    index = dict(nccl.variables).get("NCCL_IB_GID_INDEX")
    if index is not None:
        return not_checked(
            f"NCCL_IB_GID_INDEX={index} over {', '.join(roce)}; the GID tables are not in these lines"
        )
    if nccl.num_hosts < 2 and not _joins_nodes(nccl):
        return not_checked(f"RoCE over {', '.join(roce)}, one host in these lines")
    intel = any("irdma" in name for name in roce)
    return warned(
        f"NCCL goes over RoCE ({', '.join(roce)}{', Intel irdma' if intel else ''}) without"
        " NCCL_IB_GID_INDEX:"
        " GID and routing of these NICs must be right on every node, else ibv_modify_qp times out",
        "an IPv4 RoCE v2 GID on each NIC, and a route between them",
        "on every node: show_gids (or cat /sys/class/infiniband/DEVICE/ports/1/gids/*); ping the peer"
        " from each RoCE"
        " interface; export NCCL_IB_GID_INDEX to the IPv4 RoCE v2 entry, or NCCL_IB_HCA to the NICs"
        " that are routed",
    )


def _joins_nodes(nccl: Nccl) -> bool:
    return isinstance(nccl.transports, tuple) and any(via.startswith("NET/") for via in nccl.transports)


def bootstrap(facts: NodeFacts) -> Verdict:
    nccl = _nccl(facts)
    if isinstance(nccl, Verdict):
        return nccl
    if isinstance(nccl.bootstrap, Unknown):
        return not_checked("no Bootstrap line")
    interface, address = nccl.bootstrap
    expected = "an interface that the other nodes reach"
    if _NOT_ROUTED.match(interface):
        if nccl.num_hosts > 1 or _joins_nodes(nccl):
            return failed(
                f"NCCL starts over {interface} ({address}), which other nodes do not reach",
                expected,
                "ip -br addr; export NCCL_SOCKET_IFNAME to the interface between the nodes",
            )
        return not_checked(f"{interface} ({address}): right within one node, not between several")
    return passed(f"{interface} ({address})", expected)


def transports(facts: NodeFacts) -> Verdict:
    nccl = _nccl(facts)
    if isinstance(nccl, Verdict):
        return nccl
    if isinstance(nccl.transports, Unknown):
        return not_checked("no Channel lines")
    kinds = nccl.transports
    shared = [via for via in kinds if via.startswith("SHM")]
    expected = "P2P between the GPUs of a node; GDRDMA between nodes"
    told = f"{', '.join(kinds[:6])}{f', {nccl.num_channels} channels' if nccl.num_channels != ABSENT else ''}"
    disabled = dict(nccl.variables).get("NCCL_P2P_DISABLE") == "1"
    if shared:
        why = "NCCL_P2P_DISABLE=1 is set" if disabled else "direct access between GPUs is not used"
        return warned(
            f"{told}: {why}, data goes through host memory",
            expected,
            "unset NCCL_P2P_DISABLE"
            if disabled
            else "nvidia-smi topo -p2p r; ACS and IOMMU; see peer_access",
        )
    sockets = [via for via in kinds if via.startswith("NET/Socket")]
    if sockets:
        return warned(f"{told}: TCP between nodes", expected, "see nccl_network")
    return passed(told, expected)


def nvls(facts: NodeFacts) -> Verdict:
    nccl = _nccl(facts)
    if isinstance(nccl, Verdict):
        return nccl
    if isinstance(nccl.nvls, Unknown):
        return not_checked("no NVLS line")
    if nccl.nvls:
        return passed(f"NVLink SHARP is available, {nccl.num_nvls_channels} channels", "")
    return passed("NVLS multicast is not available, which is normal before Hopper and without NVSwitch", "")


def warnings(facts: NodeFacts) -> Verdict:
    nccl = _nccl(facts)
    if isinstance(nccl, Verdict):
        return nccl
    if not nccl.warnings:
        return passed("no NCCL WARN line", "no NCCL WARN line")
    worst: tuple[Status, str, str] | None = None
    for text in nccl.warnings:
        known = explain_warning(text)
        status = known.status if known else Status.WARN
        meaning = f"{known.meaning}: " if known else ""
        fix = known.fix if known else "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH shows what led to it"
        if worst is None or status.severity < worst[0].severity:
            worst = (status, f"{meaning}NCCL WARN {text}", fix)
    assert worst is not None
    status, found, fix = worst
    more = f" (and {len(nccl.warnings) - 1} other warnings)" if len(nccl.warnings) > 1 else ""
    fix = fix.format(
        verbs=_VERBS_IN_CONTAINER.format(install=install(facts.system, "verbs")), driver=install_driver(facts)
    )
    return Verdict(status=status, found=found + more, expected="no NCCL WARN line", fix=fix)


CHECKS = (
    Check(id="nccl_network", area=AREA, judge=network),
    Check(id="nccl_roce_route", area=AREA, judge=roce_route),
    Check(id="nccl_bootstrap", area=AREA, judge=bootstrap),
    Check(id="nccl_transports", area=AREA, judge=transports),
    Check(id="nccl_nvls", area=AREA, judge=nvls),
    Check(id="nccl_warnings", area=AREA, judge=warnings),
)
