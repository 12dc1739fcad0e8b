"""Limits, memory, storage and names of the node; what a container lacks."""

from __future__ import annotations

import ipaddress

from drivetrain.doctor.facts import NodeFacts
from drivetrain.doctor.finding import Check, Verdict, failed, not_checked, passed, warned
from drivetrain.doctor.fixes import install
from drivetrain.spec.unknown import Unknown

AREA = "Host"
_GIB = 1 << 30
# 64 MiB is a container's default, in which two loader workers with images die of a bus error.
_SHM_FAIL_BYTES = 512 << 20
_SHM_WARN_BYTES = 4 * _GIB
_OPEN_FILES_WANTED = 65_536
_OPEN_FILES_LEAST = 4_096
_SLOW_STORAGE_BYTES_PER_S = 100e6
_CLOCK_ERROR_S = 0.5


def shm(facts: NodeFacts) -> Verdict:
    total, free = facts.host.shm_total_bytes, facts.host.shm_free_bytes
    if isinstance(total, Unknown) or isinstance(free, Unknown):
        return not_checked((total if isinstance(total, Unknown) else free).reason)  # type: ignore[union-attr]
    expected = f"at least {_SHM_WARN_BYTES >> 30} GiB for NCCL and loader workers"
    fix = "container: --shm-size=16g or --ipc=host; host: sudo mount -o remount,size=50% /dev/shm"
    told = f"/dev/shm: {free / _GIB:.2f} GiB free of {total / _GIB:.2f}"
    if free < _SHM_FAIL_BYTES:
        return failed(told, expected, fix)
    return warned(told, expected, fix) if free < _SHM_WARN_BYTES else passed(told, expected)


def memlock(facts: NodeFacts) -> Verdict:
    limit = facts.host.memlock_bytes
    if isinstance(limit, Unknown):
        return not_checked(limit.reason)
    expected = "unlimited where InfiniBand or RoCE is used: verbs lock memory"
    if limit < 0:
        return passed("unlimited", expected)
    told = f"memlock {limit >> 10} KiB"
    if isinstance(facts.rdma, tuple) and facts.rdma:
        return failed(
            told,
            expected,
            "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/rdma.conf and log in anew; Slurm:"
            " PropagateResourceLimitsExcept=MEMLOCK; container: --ulimit memlock=-1",
        )
    return passed(f"{told}; no InfiniBand or RoCE here that would need more", expected)


def open_files(facts: NodeFacts) -> Verdict:
    soft, hard = facts.host.max_open_files, facts.host.max_open_files_hard
    if isinstance(soft, Unknown):
        return not_checked(soft.reason)
    expected = f"at least {_OPEN_FILES_WANTED}"
    told = (
        f"{'unlimited' if soft < 0 else soft} open files (may be raised to"
        f" {hard if isinstance(hard, int) and hard >= 0 else 'any'})"
    )
    if soft < 0 or soft >= _OPEN_FILES_WANTED:
        return passed(told, expected)
    fix = (
        f"ulimit -n {_OPEN_FILES_WANTED}; for good: '* - nofile {_OPEN_FILES_WANTED}' in"
        " /etc/security/limits.d/"
    )
    return (
        warned(told, expected, fix)
        if soft < _OPEN_FILES_LEAST
        else passed(f"{told}, enough for one node", expected)
    )


def cpus(facts: NodeFacts) -> Verdict:
    usable, visible = facts.host.num_cpus_usable, facts.host.num_cpus_visible
    if isinstance(usable, Unknown) or isinstance(visible, Unknown):
        return not_checked("the number of CPUs was not read")
    expected = "the CPUs that programs count are those that they may use"
    if usable < visible:
        return warned(
            f"{usable} of {visible} visible CPUs may be used ({facts.host.cpu_reason}): libraries that"
            " count the"
            " visible ones start too many threads",
            expected,
            f"export OMP_NUM_THREADS (drivetrain's launcher sets it); container: --cpus={visible}",
        )
    return passed(f"{usable} CPUs, all of them usable", expected)


def memory(facts: NodeFacts) -> Verdict:
    usable, visible = facts.host.memory_usable_bytes, facts.host.memory_visible_bytes
    if isinstance(usable, Unknown) or isinstance(visible, Unknown):
        return not_checked("the memory was not read")
    expected = "no cgroup limit below the machine's memory, or one that is known"
    if usable < visible * 0.99:
        return warned(
            f"{usable / _GIB:.1f} of {visible / _GIB:.1f} GiB may be used"
            f" ({facts.host.memory_reason}): a process over"
            " it is killed without a word",
            expected,
            "raise it: container --memory, Slurm --mem, Kubernetes resources.limits.memory",
        )
    return passed(f"{usable / _GIB:.1f} GiB", expected)


def numa(facts: NodeFacts) -> Verdict:
    nodes = facts.host.num_numa_nodes
    if isinstance(nodes, Unknown):
        return not_checked(nodes.reason)
    if nodes < 2:
        return passed("one NUMA node", "")
    if facts.host.numa_balancing is True:
        return warned(
            f"{nodes} NUMA nodes, and the kernel moves pages between them by itself",
            "automatic NUMA balancing off while training",
            "sudo sysctl kernel.numa_balancing=0",
        )
    return passed(
        f"{nodes} NUMA nodes, memory from {facts.host.numa_allowed}", "processes bound to their GPU's node"
    )


def storage(facts: NodeFacts) -> Verdict:
    rate, write, folder = (
        facts.storage.read_bytes_per_s,
        facts.storage.write_bytes_per_s,
        facts.storage.folder,
    )
    if isinstance(write, Unknown):
        return not_checked(write.reason)
    free = facts.storage.free_bytes
    told = f"{folder} ({facts.storage.kind}): writes {write / 1e6:.0f} MB/s"
    if isinstance(rate, float):
        told += (
            f", reads {rate / 1e6:.0f}"
            f" MB/s{' (from the page cache)' if facts.storage.read_from_cache is True else ''}"
        )
    expected = f"at least {_SLOW_STORAGE_BYTES_PER_S / 1e6:.0f} MB/s, 1 GiB free"
    if isinstance(free, int) and free < _GIB:
        return failed(f"{told}; {free / _GIB:.2f} GiB free", expected, "free space, or choose another folder")
    slowest = min(write, rate) if isinstance(rate, float) else write
    if slowest < _SLOW_STORAGE_BYTES_PER_S:
        return warned(told, expected, "copy the data to a local disk, or pack it into few large files")
    return passed(told, expected)


def hostname(facts: NodeFacts) -> Verdict:
    addresses = facts.host.addresses_of_own_name
    if isinstance(addresses, Unknown):
        return not_checked(addresses.reason)
    expected = "this node's own name leads to an address that the other nodes reach, IPv4 first"
    fix = (
        "add this node's address and name to /etc/hosts on every node; for IPv4 first: precedence"
        " ::ffff:0:0/96 100 in /etc/gai.conf"
    )
    if not addresses:
        return warned("this node's own name has no address", expected, fix)
    first = _parse(addresses[0])
    if first is not None and first.is_loopback:
        return passed(
            f"own name is {addresses[0]}, loopback: right on one node, not between several", expected
        )
    if first is not None and first.version == 6:
        return warned(
            f"own name is {addresses[0]} first, IPv6 (then {', '.join(addresses[1:3]) or 'none'})",
            expected,
            fix,
        )
    return passed(f"own name is {addresses[0]}", expected)


def _parse(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.split("%")[0])
    except ValueError:
        return None


def interfaces(facts: NodeFacts) -> Verdict:
    listed = facts.host.interfaces
    if isinstance(listed, Unknown):
        return not_checked(listed.reason)
    wanted = (
        dict(facts.host.nccl_variables).get("NCCL_SOCKET_IFNAME", "")
        if isinstance(facts.host.nccl_variables, tuple)
        else ""
    )
    up = [(name, address) for name, address, is_up in listed if is_up and name != "lo"]
    told = ", ".join(f"{name} {address}" for name, address in up[:6]) or "none beside loopback"
    if wanted and not wanted.startswith("^"):
        prefixes = [word.lstrip("=") for word in wanted.split(",")]
        if not any(name.startswith(prefix) for name, _, _ in listed for prefix in prefixes):
            return failed(
                f"NCCL_SOCKET_IFNAME={wanted} names none of {told}",
                "an interface that is there",
                "unset NCCL_SOCKET_IFNAME",
            )
    if not up:
        return passed("only loopback: right for one node", "")
    return passed(
        told, "an interface that is up with an address; whether others reach it shows only between nodes"
    )


def clock(facts: NodeFacts) -> Verdict:
    error, synchronised = facts.host.clock_error_s, facts.host.clock_synchronised
    if isinstance(synchronised, Unknown):
        return not_checked(synchronised.reason)
    expected = "a clock kept by NTP; the difference between nodes is measured with several nodes"
    fix = (
        f"{install(facts.system, 'clock')} && sudo systemctl enable --now chronyd || sudo"
        " timedatectl set-ntp true"
    )
    if not synchronised:
        return warned("the kernel says that the clock is not synchronised", expected, fix)
    if isinstance(error, float) and error > _CLOCK_ERROR_S:
        return warned(f"synchronised, with an error of up to {error:.1f} s", expected, fix)
    return passed("the clock is synchronised", expected)


def clock_skew(facts: NodeFacts) -> Verdict:
    del facts
    return not_checked("the difference between nodes shows only with several nodes")


def firewall(facts: NodeFacts) -> Verdict:
    state = facts.host.firewall
    if isinstance(state, Unknown):
        return not_checked(state.reason)
    if state:
        return warned(
            f"{state} is active: NCCL and the rendezvous use any port between nodes",
            "ports between the nodes open",
            "sudo ufw allow from SUBNET"
            if "ufw" in state
            else "sudo firewall-cmd --permanent --zone=trusted --add-source=SUBNET && sudo"
            " firewall-cmd --reload",
        )
    return passed(
        "no firewall service is active on this node; what lies between nodes shows only with several", ""
    )


def container(facts: NodeFacts) -> Verdict:
    kind = facts.system.container
    if isinstance(kind, Unknown):
        return not_checked(kind.reason)
    if not kind:
        return passed("no container", "")
    missing = []
    files, held = facts.host.gpu_device_files, facts.host.capabilities
    devices = facts.system.nvidia_pci_devices
    if isinstance(files, tuple) and not files and isinstance(devices, int) and devices > 0:
        missing.append(f"{devices} NVIDIA GPUs on the host's PCI bus, but no /dev/nvidia*")
    verbs = facts.host.verbs_devices
    if isinstance(facts.rdma, tuple) and facts.rdma and isinstance(verbs, tuple) and not verbs:
        missing.append("InfiniBand on the host, but no /dev/infiniband")
    if isinstance(facts.rdma, tuple) and facts.rdma and isinstance(held, tuple) and "IPC_LOCK" not in held:
        missing.append("no capability IPC_LOCK, which verbs need")
    if missing:
        return failed(
            f"{kind}: {'; '.join(missing)}",
            "GPU and InfiniBand devices of the host in the container",
            "docker run --gpus all --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1"
            " --ipc=host …",
        )
    return passed(f"{kind}: nothing that the host has is missing", "")


def visible_devices(facts: NodeFacts) -> Verdict:
    value = facts.host.cuda_visible_devices
    if isinstance(value, Unknown):
        return not_checked(value.reason)
    if value.strip() in ("", "-1") and isinstance(facts.gpus, tuple) and facts.gpus:
        return failed(
            f"CUDA_VISIBLE_DEVICES={value!r} hides every GPU",
            "unset, or a list",
            "unset CUDA_VISIBLE_DEVICES",
        )
    return passed(f"CUDA_VISIBLE_DEVICES={value}", "")


CHECKS = (
    Check(id="shm", area=AREA, judge=shm),
    Check(id="memlock", area=AREA, judge=memlock),
    Check(id="open_files", area=AREA, judge=open_files),
    Check(id="cpus", area=AREA, judge=cpus),
    Check(id="memory", area=AREA, judge=memory),
    Check(id="numa", area=AREA, judge=numa),
    Check(id="storage", area=AREA, judge=storage),
    Check(id="hostname", area=AREA, judge=hostname),
    Check(id="interfaces", area=AREA, judge=interfaces),
    Check(id="clock", area=AREA, judge=clock),
    Check(id="clock_skew", area=AREA, judge=clock_skew),
    Check(id="firewall", area=AREA, judge=firewall),
    Check(id="container", area=AREA, judge=container),
    Check(id="visible_devices", area=AREA, judge=visible_devices),
)
