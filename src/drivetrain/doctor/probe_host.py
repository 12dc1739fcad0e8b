"""The live node by /proc, /sys and /etc: limits, memory, interfaces, what the kernel says of the driver.

`root` is where these are found, so that tests can hand in captured trees.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import re
import resource
import shutil
import socket
import struct
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from drivetrain.doctor.facts import Driver, Host, System, XidEvent
from drivetrain.doctor.pasted.small import small_blocks
from drivetrain.hardware.cpu import usable_cpus
from drivetrain.hardware.distribution import this_distribution
from drivetrain.hardware.memory import usable_memory
from drivetrain.spec.unknown import Unknown

_NVIDIA = "0x10de"
# linux/capability.h: what verbs and NUMA binding need.
_CAPABILITIES = {14: "IPC_LOCK", 21: "SYS_ADMIN", 23: "SYS_NICE", 19: "SYS_PTRACE", 12: "NET_ADMIN"}
_NCCL_PREFIXES = ("NCCL_", "GLOO_", "UCX_", "TORCH_NCCL_")
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)


def read_system(root: Path = Path("/")) -> System:
    release = platform.release()
    distribution = this_distribution(root)
    return System(
        name=distribution.name if distribution else platform.platform(),
        distribution=distribution or Unknown("there is no /etc/os-release"),
        machine=platform.machine(),
        kernel=release,
        container=_container(root),
        is_jetson=(root / "etc/nv_tegra_release").exists(),
        is_wsl="microsoft" in release.lower(),
        is_windows=False,
        secure_boot=_secure_boot(root),
        nouveau_loaded=_module_loaded(root, "nouveau"),
        nvidia_pci_devices=_count_nvidia(root),
    )


def _container(root: Path) -> str:
    if (root / ".dockerenv").exists():
        return "Docker"
    if (root / "run/.containerenv").exists():
        return "Podman"
    if (root / ".singularity.d").exists():
        return "Apptainer"
    if (root / "var/run/secrets/kubernetes.io").exists():
        return "Kubernetes"
    groups = _read(root / "proc/1/cgroup") or ""
    return "container" if re.search(r"docker|kubepods|containerd|lxc", groups) else ""


def _secure_boot(root: Path) -> bool | Unknown:
    folder = root / "sys/firmware/efi/efivars"
    if not (root / "sys/firmware/efi").exists():
        return Unknown("no EFI variables here (BIOS, virtual machine or container)")
    path = next(folder.glob("SecureBoot-*"), None)
    try:
        data = path.read_bytes() if path is not None else b""
    except OSError as error:
        return Unknown(f"the EFI variable cannot be read: {error.strerror}")
    # Four bytes of attributes, then the value.
    return data[4] == 1 if len(data) >= 5 else Unknown("there is no EFI variable SecureBoot")


def _module_loaded(root: Path, name: str) -> bool | Unknown:
    if not (root / "sys/module").is_dir():
        return Unknown("there is no /sys/module")
    return (root / f"sys/module/{name}").is_dir()


def _count_nvidia(root: Path) -> int | Unknown:
    """Display controllers (PCI class 03) of NVIDIA."""
    folder = root / "sys/bus/pci/devices"
    if not folder.is_dir():
        return Unknown("there is no /sys/bus/pci")
    return sum(
        _read(device / "vendor") == _NVIDIA and (_read(device / "class") or "").startswith("0x03")
        for device in folder.iterdir()
    )


def _has_nvswitch(root: Path) -> bool | Unknown:
    """NVIDIA bridges of class 0x0680: what NVSwitches are on the PCI bus."""
    folder = root / "sys/bus/pci/devices"
    if not folder.is_dir():
        return Unknown("there is no /sys/bus/pci")
    return any(
        _read(device / "vendor") == _NVIDIA and (_read(device / "class") or "").startswith("0x0680")
        for device in folder.iterdir()
    )


def read_kernel_driver(root: Path = Path("/")) -> Driver:
    """The loaded kernel module, by /proc/driver/nvidia/version."""
    text = _read(root / "proc/driver/nvidia/version")
    if text is None:
        return Driver(kernel_module=Unknown("NVIDIA's kernel module is not loaded"))
    version = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text)
    return Driver(
        kernel_module=version.group(1) if version else Unknown("its version cannot be read"),
        has_open_modules="Open Kernel Module" in text,
    )


def read_xids() -> tuple[XidEvent, ...] | Unknown:
    """Xid lines of the kernel log since boot; reading it may need root."""
    for command in (["dmesg"], ["journalctl", "-k", "-b", "--no-pager", "-q"]):
        if shutil.which(command[0]) is None:
            continue
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.strip():
            blocks = small_blocks(done.stdout.splitlines())
            return next((block.xids for block in blocks if isinstance(block.xids, tuple)), ())
    return Unknown("the kernel log cannot be read here: sudo dmesg | grep -i xid")


def read_host(environ: Mapping[str, str], root: Path = Path("/")) -> Host:
    cpus, memory = usable_cpus(root), usable_memory(root)
    shm = _shm(root)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    synchronised, error_s = _clock()
    return Host(
        shm_total_bytes=shm if isinstance(shm, Unknown) else shm[0],
        shm_free_bytes=shm if isinstance(shm, Unknown) else shm[1],
        memlock_bytes=-1 if memlock == resource.RLIM_INFINITY else memlock,
        max_open_files=-1 if soft == resource.RLIM_INFINITY else soft,
        max_open_files_hard=-1 if hard == resource.RLIM_INFINITY else hard,
        num_cpus_visible=os.cpu_count() or Unknown("the kernel does not tell"),
        num_cpus_usable=cpus.count,
        cpu_reason=cpus.reason,
        memory_visible_bytes=_memory_total(root),
        memory_usable_bytes=memory.limit_bytes,
        memory_reason=memory.reason,
        num_numa_nodes=_numa_nodes(root),
        numa_balancing=_numa_balancing(root),
        numa_allowed=_numa_allowed(root),
        clock_synchronised=synchronised,
        clock_error_s=error_s,
        firewall=_firewall(root),
        interfaces=_interfaces(),
        acs_enabled_bridges=_acs(root),
        iommu=_iommu(root),
        peermem_loaded=_either_module(root, "nvidia_peermem", "nv_peer_mem"),
        verbs_devices=tuple(sorted(path.name for path in (root / "dev/infiniband").glob("uverbs*"))),
        capabilities=_capabilities(root),
        gpu_device_files=tuple(sorted(path.name for path in (root / "dev").glob("nvidia[0-9]*"))),
        fabric_manager=_fabric_manager(root),
        has_nvswitch=_has_nvswitch(root),
        nccl_variables=tuple(
            sorted(
                (name, value)
                for name, value in environ.items()
                if name.startswith(_NCCL_PREFIXES) and not _SECRET.search(name)
            )
        ),
        cuda_visible_devices=environ.get("CUDA_VISIBLE_DEVICES", Unknown("CUDA_VISIBLE_DEVICES is not set")),
    )


def _shm(root: Path) -> tuple[int, int] | Unknown:
    try:
        stat = os.statvfs(root / "dev/shm")
    except OSError as error:
        return Unknown(f"/dev/shm: {error.strerror}")
    return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def _memory_total(root: Path) -> int | Unknown:
    match = re.search(r"^MemTotal:\s*(\d+) kB", _read(root / "proc/meminfo") or "", re.MULTILINE)
    return int(match.group(1)) * 1024 if match else Unknown("/proc/meminfo cannot be read")


def _numa_nodes(root: Path) -> int | Unknown:
    folder = root / "sys/devices/system/node"
    if not folder.is_dir():
        return Unknown("there is no /sys/devices/system/node")
    return len(list(folder.glob("node[0-9]*")))


def _numa_balancing(root: Path) -> bool | Unknown:
    text = _read(root / "proc/sys/kernel/numa_balancing")
    return Unknown("this kernel has no automatic NUMA balancing") if text is None else text != "0"


def _numa_allowed(root: Path) -> str | Unknown:
    match = re.search(r"^Mems_allowed_list:\s*(\S+)", _read(root / "proc/self/status") or "", re.MULTILINE)
    return match.group(1) if match else Unknown("/proc/self/status does not tell")


class _Timex(ctypes.Structure):
    """The head of the kernel's struct timex (adjtimex(2)); the rest is only room for it to write in."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 512),
    )


def _clock() -> tuple[bool | Unknown, float | Unknown]:
    """Whether the kernel's clock is kept by NTP, and its largest error."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        timex = _Timex(modes=0)
        state = libc.adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError) as error:
        why = Unknown(f"adjtimex cannot be called: {error}")
        return why, why
    if state < 0:
        why = Unknown(f"adjtimex: {os.strerror(ctypes.get_errno())}")
        return why, why
    is_unsynchronised = state == 5 or bool(timex.status & 0x40)  # TIME_ERROR, STA_UNSYNC
    return not is_unsynchronised, timex.maxerror / 1e6


def _firewall(root: Path) -> str | Unknown:
    names = _process_names(root)
    if "firewalld" in names:
        return "firewalld"
    if re.search(r"^ENABLED=yes", _read(root / "etc/ufw/ufw.conf") or "", re.MULTILINE):
        return "ufw"
    if _container(root):
        return Unknown("in a container: the host's firewall is not seen")
    return ""


def _process_names(root: Path) -> set[str]:
    return {name for path in (root / "proc").glob("[0-9]*/comm") if (name := _read(path)) is not None}


def _interfaces() -> tuple[tuple[str, str, bool], ...] | Unknown:
    """Name, IPv4 address ("" for none), up: by ioctl, so that no tool is needed."""
    found = []
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode()[:15])
                flags = struct.unpack_from("H", fcntl.ioctl(probe.fileno(), 0x8913, request), 16)[
                    0
                ]  # SIOCGIFFLAGS
                try:
                    data = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
                    address = socket.inet_ntoa(data[20:24])
                except OSError:
                    address = ""
                found.append((name, address, bool(flags & 1)))
    except OSError as error:
        return Unknown(f"interfaces cannot be listed: {error.strerror}")
    return tuple(found)


def _acs(root: Path) -> int | Unknown:
    """PCI bridges whose ACS control redirects peer traffic; only root reads past 256 bytes of their space."""
    bridges = [
        device
        for device in (root / "sys/bus/pci/devices").glob("*")
        if (_read(device / "class") or "").startswith("0x0604")
    ]
    redirecting, short = 0, 0
    for device in bridges:
        try:
            data = (device / "config").read_bytes()
        except OSError:
            data = b""
        if len(data) <= 256:
            short += 1
        elif _redirects(data):
            redirecting += 1
    if short and not redirecting:
        return Unknown("the PCI bridges' ACS bits are readable by root only: sudo lspci -vvv | grep ACSCtl")
    return redirecting


def _redirects(config: bytes) -> bool:
    """Walks the extended capabilities to ACS (0x000D), whose control bits 2 to 4 redirect (PCIe 7.7.11)."""
    at, steps = 0x100, 0
    while 0x100 <= at <= len(config) - 8 and steps < 96:
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == 0x000D:
            control = int.from_bytes(config[at + 6 : at + 8], "little")
            return bool(control & 0b11100)
        at, steps = header >> 20, steps + 1
    return False


def _iommu(root: Path) -> str | Unknown:
    groups = root / "sys/kernel/iommu_groups"
    if not groups.is_dir():
        return Unknown("there is no /sys/kernel/iommu_groups")
    kinds = Counter(kind for path in groups.glob("*/type") if (kind := _read(path)) is not None)
    if not kinds:
        return "off"
    return "passthrough" if set(kinds) == {"identity"} else "translating"


def _either_module(root: Path, *names: str) -> bool | Unknown:
    states = [_module_loaded(root, name) for name in names]
    unknown = next((state for state in states if isinstance(state, Unknown)), None)
    return unknown if unknown is not None else any(state is True for state in states)


def _capabilities(root: Path) -> tuple[str, ...] | Unknown:
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", _read(root / "proc/self/status") or "", re.MULTILINE)
    if match is None:
        return Unknown("/proc/self/status does not tell")
    bits = int(match.group(1), 16)
    return tuple(name for bit, name in sorted(_CAPABILITIES.items()) if bits >> bit & 1)


def _fabric_manager(root: Path) -> str | Unknown:
    if "nv-fabricmanager" in _process_names(root):
        return "active"
    if _container(root):
        return Unknown("in a container: Fabric Manager runs on the host")
    return "not running"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
