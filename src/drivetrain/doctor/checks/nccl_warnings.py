"""NCCL's warnings at start-up: what each means, how bad it is, and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from drivetrain.doctor.finding import Status


@dataclass(frozen=True, kw_only=True)
class KnownWarning:
    """`fix` may name `{verbs}` and `{driver}`, the distribution's commands for these."""

    pattern: re.Pattern[str]
    status: Status
    meaning: str
    fix: str


def _known(pattern: str, status: Status, meaning: str, fix: str) -> KnownWarning:
    return KnownWarning(pattern=re.compile(pattern, re.IGNORECASE), status=status, meaning=meaning, fix=fix)


# The first that fits counts.
_WARNINGS: Final = (
    _known(
        r"ibv_modify_qp failed.*(timed out|unreachable|invalid argument|no data|no such device)",
        Status.FAIL,
        "a queue pair cannot be connected: wrong GID index, or no route between the RDMA networks",
        "show_gids on both nodes; export NCCL_IB_GID_INDEX to the IPv4 RoCE v2 entry; ping between"
        " RDMA addresses",
    ),
    _known(
        r"ibv_reg_mr|ibv_reg_dmabuf",
        Status.FAIL,
        "memory cannot be registered with the NIC: memlock limit, nvidia_peermem, or ACS/IOMMU",
        "ulimit -l unlimited (container: --ulimit memlock=-1); sudo modprobe nvidia_peermem; see acs_iommu",
    ),
    _known(
        r"ibv_open_device|Unable to open device|ibv_create_qp|ibv_alloc_pd|ibv_create_cq",
        Status.FAIL,
        "a verbs device cannot be opened or used by this process",
        "container: --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1; ls -l /dev/infiniband",
    ),
    _known(
        r"completion.*(error 12|status=12|vendor err 129)|error 12\b",
        Status.FAIL,
        "packets between two NICs are lost (retry exceeded)",
        "ibstat and ib_write_bw between that pair; cable, switch, PFC for RoCE; NCCL_IB_TIMEOUT=22"
        " only hides it",
    ),
    _known(
        r"async event.*port error|port (?:is )?down",
        Status.FAIL,
        "a port went down",
        "ibstat; cable, switch",
    ),
    _known(
        r"no socket interface found|No interface found|Bootstrap : no",
        Status.FAIL,
        "no network interface fits NCCL_SOCKET_IFNAME",
        "ip -br addr; export NCCL_SOCKET_IFNAME to one of them, or unset it",
    ),
    _known(
        r"Failed to open libibverbs",
        Status.WARN,
        "libibverbs is not there: NCCL talks TCP between nodes",
        "{verbs}",
    ),
    _known(
        r"Duplicate GPU",
        Status.FAIL,
        "two ranks use one GPU",
        "torch.cuda.set_device(local_rank) first of all",
    ),
    _known(
        r"Mismatched NCCL version|NCCL version mismatch|version .* mismatch",
        Status.FAIL,
        "ranks load different NCCL versions",
        "one image or wheel on every node; unset LD_LIBRARY_PATH and LD_PRELOAD",
    ),
    _known(
        r"/dev/shm|shared memory|No space left on device",
        Status.FAIL,
        "shared memory is full or too small",
        "container: --shm-size=16g or --ipc=host; Kubernetes: emptyDir with medium: Memory on /dev/shm",
    ),
    _known(
        r"driver version is insufficient|forward compatibility",
        Status.FAIL,
        "the driver is too old for this CUDA",
        "{driver}",
    ),
    _known(
        r"system not yet initialized|error 802|NVLS|multicast|nvmlDeviceGetGpuFabric",
        Status.FAIL,
        "NVSwitch is not set up for this (Fabric Manager, NVLink SHARP)",
        "systemctl status nvidia-fabricmanager; export NCCL_NVLS_ENABLE=0 to go on without",
    ),
    _known(
        r"busy or unavailable|all CUDA-capable devices",
        Status.FAIL,
        "the GPU is taken: exclusive compute mode, or a stale process",
        "sudo nvidia-smi -c 0; nvidia-smi shows who holds it",
    ),
    _known(
        r"out of memory",
        Status.FAIL,
        "no GPU memory left for NCCL's buffers",
        "free the GPU; smaller batch; NCCL_BUFFSIZE=1048576",
    ),
    _known(
        r"Cuda failure.*(unhandled|illegal|peer access|invalid argument|999|unknown"
        r" error)|P2P.*(fail|not)",
        Status.FAIL,
        "CUDA failed below NCCL",
        "nvidia-smi, dmesg for Xid; NCCL_P2P_DISABLE=1 tells whether direct access between GPUs is at fault",
    ),
    _known(
        r"Connection (refused|reset|closed)|closed by remote|connect.*timed out|No route to host",
        Status.FAIL,
        "a peer could not be reached, or ended",
        "look at the peer's log first; then firewall and NCCL_SOCKET_IFNAME on both nodes",
    ),
    _known(
        r"NUMA auto balancing",
        Status.WARN,
        "automatic NUMA balancing moves pages under the GPUs' transfers",
        "sudo sysctl kernel.numa_balancing=0",
    ),
    _known(
        r"iommu=pt",
        Status.WARN,
        "the IOMMU translates",
        "iommu=pt on the kernel's command line, then reboot",
    ),
    _known(
        r"libnccl-net|NET/Plugin|plugin",
        Status.WARN,
        "a network plugin was not loaded as wished",
        "NCCL_NET_PLUGIN=none takes NCCL's own; else check LD_LIBRARY_PATH of the plugin",
    ),
)


def explain_warning(text: str) -> KnownWarning | None:
    """What is known of the text after "NCCL WARN"; None for a warning that the table does not know."""
    return next((known for known in _WARNINGS if known.pattern.search(text)), None)
