"""What was found on a node. Every field is a value or Unknown with the reason; checks judge, facts do not.

The same types are filled by the probes of the live machine and by the parsers of pasted text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from drivetrain.hardware.distribution import Distribution
from drivetrain.spec.unknown import Unknown

ABSENT: Final = Unknown("nothing that was read tells it")
"""The default of every fact: neither looked for with success, nor said in what was pasted."""

Text = str | Unknown
Count = int | Unknown
Number = float | Unknown
Flag = bool | Unknown


@dataclass(frozen=True, kw_only=True)
class System:
    """The operating system and, where told, what kind of machine it runs on."""

    name: Text = ABSENT
    distribution: Distribution | Unknown = ABSENT
    machine: Text = ABSENT  # x86_64, aarch64
    kernel: Text = ABSENT
    container: Text = ABSENT  # "" outside a container
    is_jetson: Flag = ABSENT
    is_wsl: Flag = ABSENT
    is_windows: Flag = ABSENT
    secure_boot: Flag = ABSENT
    nouveau_loaded: Flag = ABSENT
    nvidia_pci_devices: Count = ABSENT


@dataclass(frozen=True, kw_only=True)
class Driver:
    """NVIDIA's driver.

    Attributes:
        version: of the user-space library, as the tools print it.
        kernel_module: of the loaded kernel module.
        max_cuda_shown: the "CUDA Version" that nvidia-smi prints; tools before 410 print none.
        trouble: the error that the tools give instead of an answer.
        has_open_modules: whether the open kernel modules are loaded.
    """

    version: Text = ABSENT
    kernel_module: Text = ABSENT
    max_cuda_shown: Text = ABSENT
    trouble: Text = ABSENT
    has_open_modules: Flag = ABSENT
    cuda_compat: Text = ABSENT  # the folder of a forward compatibility package in use


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU. `errors`: fields that the tool could not read (ERR!, "GPU is lost"), with what it printed."""

    index: Count = ABSENT
    name: Text = ABSENT
    bus_id: Text = ABSENT
    uuid: Text = ABSENT
    capability: Count = ABSENT  # 80 is sm_80
    persistence: Flag = ABSENT
    compute_mode: Text = ABSENT  # default, exclusive_process, exclusive_thread, prohibited
    mig: Flag = ABSENT
    num_mig_instances: Count = ABSENT
    ecc: Flag = ABSENT
    ecc_uncorrected_volatile: Count = ABSENT
    ecc_uncorrected_aggregate: Count = ABSENT
    remapped_uncorrectable: Count = ABSENT
    remapped_correctable: Count = ABSENT
    remap_pending: Flag = ABSENT
    remap_failed: Flag = ABSENT
    retired_pages_pending: Flag = ABSENT
    reset_required: Flag = ABSENT
    temperature_c: Number = ABSENT
    power_w: Number = ABSENT
    power_limit_w: Number = ABSENT
    power_limit_default_w: Number = ABSENT
    memory_used_mib: Count = ABSENT
    memory_total_mib: Count = ABSENT
    utilization_percent: Count = ABSENT
    sm_clock_mhz: Count = ABSENT
    sm_clock_max_mhz: Count = ABSENT
    throttle_reasons: tuple[str, ...] | Unknown = ABSENT
    pcie_gen: Count = ABSENT
    pcie_gen_max: Count = ABSENT
    pcie_width: Count = ABSENT
    pcie_width_max: Count = ABSENT
    nvlinks_up: Count = ABSENT
    nvlinks_down: Count = ABSENT
    fabric: Text = ABSENT
    errors: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"GPU {self.index}" if isinstance(self.index, int) else f"GPU {self.bus_id}"


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that uses a GPU."""

    gpu: int
    pid: int
    name: str
    memory_mib: Count = ABSENT


@dataclass(frozen=True, kw_only=True)
class XidEvent:
    """One Xid line of the kernel log."""

    number: int
    bus_id: str
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Torch:
    """PyTorch as it is installed and as it imports.

    Attributes:
        import_error: "" where the import succeeded.
        cuda: the CUDA it was built with, "" for a CPU-only build.
        archs: sm numbers that it has kernels for.
        cuda_problem: the warning or error that CUDA's start gave; "" for none.
    """

    version: Text = ABSENT
    import_error: Text = ABSENT
    cuda: Text = ABSENT
    rocm: Text = ABSENT
    cuda_available: Flag = ABSENT
    cuda_problem: Text = ABSENT
    archs: tuple[int, ...] | Unknown = ABSENT
    cudnn: Text = ABSENT
    nccl: Text = ABSENT
    cublas: Text = ABSENT
    num_gpus: Count = ABSENT
    peer_access: tuple[tuple[int, int, bool], ...] | Unknown = ABSENT


@dataclass(frozen=True, kw_only=True)
class LoadedLibrary:
    """A shared library that the process mapped after `import torch`: file name up to `.so`, and its path."""

    name: str
    path: str
    is_from_wheel: bool


@dataclass(frozen=True, kw_only=True)
class Libraries:
    """What lies beside torch: the toolkit, system-wide libraries, packages.

    Attributes:
        packages: (name, version) of Python packages from pip, as far as told.
        conda_packages: the same from conda.
        pinned: (name, version) that torch's own metadata asks for.
    """

    nvcc: Text = ABSENT
    system_cudnn: tuple[str, ...] | Unknown = ABSENT
    system_nccl: tuple[str, ...] | Unknown = ABSENT
    packages: tuple[tuple[str, str], ...] | Unknown = ABSENT
    conda_packages: tuple[tuple[str, str], ...] | Unknown = ABSENT
    pinned: tuple[tuple[str, str], ...] | Unknown = ABSENT
    loaded: tuple[LoadedLibrary, ...] | Unknown = ABSENT
    library_path: Text = ABSENT  # LD_LIBRARY_PATH
    shadowing: tuple[str, ...] | Unknown = ABSENT  # CUDA libraries in LD_LIBRARY_PATH's folders


@dataclass(frozen=True, kw_only=True)
class Gid:
    """One entry of a port's GID table. `kind`: "IB", "RoCE v1", "RoCE v2"."""

    index: int
    gid: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class RdmaPort:
    """One port of an InfiniBand or RoCE device."""

    device: str
    port: int
    state: Text = ABSENT  # active, down, init, armed
    physical: Text = ABSENT  # linkup, polling, disabled
    rate_gbps: Number = ABSENT
    lanes: Count = ABSENT
    lane_speed: Text = ABSENT  # EDR
    link_layer: Text = ABSENT  # infiniband, ethernet
    lid: Count = ABSENT
    sm_lid: Count = ABSENT
    default_gid: Text = ABSENT
    gids: tuple[Gid, ...] | Unknown = ABSENT
    card: Text = ABSENT  # MT4123
    firmware: Text = ABSENT
    mtu: Count = ABSENT
    mtu_max: Count = ABSENT
    interface: Text = ABSENT

    @property
    def label(self) -> str:
        return f"{self.device} port {self.port}"


@dataclass(frozen=True, kw_only=True)
class NcclDevice:
    """A network device that NCCL uses: `link` is "IB" or "RoCE"."""

    name: str
    port: int
    link: str


@dataclass(frozen=True, kw_only=True)
class Nccl:
    """What NCCL's start-up lines say of one host.

    Attributes:
        all_versions: every version that any line tells, of all hosts.
        cuda_driver: the CUDA that the driver brings ("12.1"), from `cudaDriverVersion 12010`.
        bootstrap: (interface, address) of the first connection.
        network: what carries data between hosts: "IB", "Socket", a plugin's name.
        devices: verbs devices in use; an empty tuple where NCCL says that there is none.
        lacks_verbs_library: libibverbs could not be opened.
        transports: kinds of channels, as printed after "via" (`P2P/IPC/read`, `NET/IB/0/GDRDMA`).
        gpu_direct: whether GPUDirect RDMA is on.
        variables: (name, value) that NCCL took from the environment.
        warnings: the texts after "NCCL WARN", each once.
    """

    version: Text = ABSENT
    all_versions: tuple[str, ...] = ()
    cuda_driver: Text = ABSENT
    bootstrap: tuple[str, str] | Unknown = ABSENT
    plugin: Text = ABSENT
    network: Text = ABSENT
    devices: tuple[NcclDevice, ...] | Unknown = ABSENT
    lacks_verbs_library: Flag = ABSENT
    socket_interfaces: tuple[str, ...] | Unknown = ABSENT
    num_ranks: Count = ABSENT
    transports: tuple[str, ...] | Unknown = ABSENT
    num_channels: Count = ABSENT
    num_nvls_channels: Count = ABSENT
    nvls: Flag = ABSENT
    gpu_direct: Flag = ABSENT
    is_complete: Flag = ABSENT
    variables: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    num_hosts: int = 1


@dataclass(frozen=True, kw_only=True)
class Host:
    """Limits and settings of the node that training meets."""

    shm_total_bytes: Count = ABSENT
    shm_free_bytes: Count = ABSENT
    memlock_bytes: Count = ABSENT  # -1 is unlimited
    max_open_files: Count = ABSENT
    max_open_files_hard: Count = ABSENT
    num_cpus_visible: Count = ABSENT
    num_cpus_usable: Count = ABSENT
    cpu_reason: Text = ABSENT
    memory_visible_bytes: Count = ABSENT
    memory_usable_bytes: Count = ABSENT
    memory_reason: Text = ABSENT
    num_numa_nodes: Count = ABSENT
    numa_balancing: Flag = ABSENT
    numa_allowed: Text = ABSENT  # nodes that this process may allocate from, "0-1"
    addresses_of_own_name: tuple[str, ...] | Unknown = ABSENT
    clock_synchronised: Flag = ABSENT
    clock_error_s: Number = ABSENT
    firewall: Text = ABSENT  # "" where none is active
    interfaces: tuple[tuple[str, str, bool], ...] | Unknown = ABSENT  # name, address, up
    acs_enabled_bridges: Count = ABSENT
    iommu: Text = ABSENT  # off, passthrough, translating
    peermem_loaded: Flag = ABSENT
    verbs_devices: tuple[str, ...] | Unknown = ABSENT  # files in /dev/infiniband
    capabilities: tuple[str, ...] | Unknown = ABSENT  # that this process holds
    gpu_device_files: tuple[str, ...] | Unknown = ABSENT
    fabric_manager: Text = ABSENT  # active, inactive, not installed
    has_nvswitch: Flag = ABSENT
    nccl_variables: tuple[tuple[str, str], ...] | Unknown = ABSENT
    cuda_visible_devices: Text = ABSENT  # "" where set to nothing; Unknown where not set


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How fast the data folder is written and read. Rates are of the file system, in bytes per second."""

    folder: Text = ABSENT
    kind: Text = ABSENT  # ext4, nfs4, overlay
    free_bytes: Count = ABSENT
    write_bytes_per_s: Number = ABSENT
    read_bytes_per_s: Number = ABSENT
    read_from_cache: Flag = ABSENT


@dataclass(frozen=True, kw_only=True)
class Python:
    """The interpreter and what may be mixed up in its environment."""

    version: Text = ABSENT
    environment: Text = ABSENT  # venv, conda, system
    torch_places: tuple[str, ...] | Unknown = ABSENT
    torch_by_conda: Flag = ABSENT
    torch_by_pip: Flag = ABSENT
    numpy: Text = ABSENT
    numpy_works: Flag = ABSENT
    user_site_in_use: Flag = ABSENT


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One framework, imported in a process of its own.

    Attributes:
        outcome: ok, absent, error, crashed, hung, not_tried.
        detail: the error's last line, or the signal's name.
        unmet: requirements of its metadata that this environment does not meet.
    """

    name: str
    outcome: str
    version: Text = ABSENT
    detail: str = ""
    seconds: float = 0.0
    unmet: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One part of the functional test.

    Attributes:
        outcome: ok, wrong, error, crashed, hung, not_tried.
        detail: the numbers, or the error.
        rate: measured; TFLOP/s for matmul, bytes/s for copies, seconds for the loader's start.
    """

    name: str
    outcome: str
    detail: str = ""
    rate: Number = ABSENT
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """All that was found on one node. `read`: which kinds of text or probes it comes from."""

    node: str
    read: tuple[str, ...] = ()
    is_live: bool = False
    system: System = field(default_factory=System)
    driver: Driver = field(default_factory=Driver)
    gpus: tuple[Gpu, ...] | Unknown = ABSENT
    gpu_processes: tuple[GpuProcess, ...] | Unknown = ABSENT
    xids: tuple[XidEvent, ...] | Unknown = ABSENT
    torch: Torch = field(default_factory=Torch)
    libraries: Libraries = field(default_factory=Libraries)
    rdma: tuple[RdmaPort, ...] | Unknown = ABSENT
    nccl: Nccl | Unknown = ABSENT
    host: Host = field(default_factory=Host)
    storage: Storage = field(default_factory=Storage)
    python: Python = field(default_factory=Python)
    frameworks: tuple[Framework, ...] | Unknown = ABSENT
    trials: tuple[Trial, ...] | Unknown = ABSENT
    topology_blocks: int = 0
