"""Invented machines, as `nvidia-smi topo -m` would print them, and a stand-in for NVML that has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  NV#  = Connection traversing a bonded set of # NVLinks
"""

Link = Callable[[int, int], str]


def heading(num_gpus: int, nics: Sequence[str] = (), columns: str = "CPU,NUMA,GPU") -> str:
    """The heading as nvidia-smi prints it: a tab first, then names between tabs."""
    names = {"CPU": "CPU Affinity", "NUMA": "NUMA Affinity", "GPU": "GPU NUMA ID"}
    words = [names[column] for column in columns.split(",") if column]
    return "\t" + "\t".join([*(f"GPU{at}" for at in range(num_gpus)), *nics, *words])


def rows(
    num_gpus: int,
    link: Link,
    affinity: Callable[[int], str] = lambda _: "0-31\t0\t\tN/A",
    nics: Sequence[str] = (),
    nic_link: Link = lambda _gpu, _nic: "NODE",
) -> list[str]:
    """A row a GPU, then a row a NIC; `affinity` is what stands behind a GPU's links."""
    lines = []
    for gpu in range(num_gpus):
        cells = [" X " if gpu == other else link(gpu, other) for other in range(num_gpus)]
        cells += [nic_link(gpu, nic) for nic in range(len(nics))]
        lines.append("\t".join([f"GPU{gpu}", *cells, affinity(gpu)]))
    for at, name in enumerate(nics):
        cells = [nic_link(gpu, at) for gpu in range(num_gpus)]
        cells += [" X " if at == other else "NODE" for other in range(len(nics))]
        lines.append("\t".join([name, *cells, "", "", ""]))
    return lines


def halves(gpu: int) -> str:
    """Affinity of eight GPUs on two sockets."""
    return "0-31\t0\t\tN/A" if gpu < 4 else "32-63\t1\t\tN/A"


def pairs(a: int, b: int) -> str:
    """NVLink pairs, two on each of two sockets."""
    return "NV12" if a // 2 == b // 2 else ("NODE" if a // 4 == b // 4 else "SYS")


NICS = ("NIC0", "NIC1", "NIC2", "NIC3")
EIGHT_ROWS = rows(
    8,
    pairs,
    halves,
    NICS,
    lambda gpu, nic: "PIX" if gpu // 2 == nic else ("NODE" if gpu // 4 == nic // 2 else "SYS"),
)
NIC_NAMES = "NIC Legend:\n\n" + "".join(f"  NIC{at}: mlx5_{2 * at}\n" for at in range(4))
EIGHT = "\n".join([heading(8, NICS), *EIGHT_ROWS]) + f"\n{LEGEND}\n{NIC_NAMES}"
"""Eight GPUs in NVLink pairs, a NIC for each pair, two sockets."""


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


class FakeNvml:
    """nvidia-ml-py's calls that the wiring needs, and no others.

    Args:
        links: (a, b) → NVLinks between two GPUs, or (a, "switch") → to a switch.
        level: NVML's topology level of two GPUs.
        failing: (call, GPU) → NVML error code.
        numa: by GPU.
    """

    NVMLError = NvmlError

    def __init__(self, num_gpus=4, *, links=None, level=None, failing=None, numa=None, refused=(), cpus=None):
        self.num_gpus = num_gpus
        self.links = links or {}
        self.level = level or (lambda _a, _b: 50)
        self.failing = failing or {}
        self.numa = numa or (lambda gpu: gpu // 2)
        self.cpus = cpus or (lambda gpu: range(4 * self.numa(gpu), 4 * self.numa(gpu) + 4))
        self.refused = refused
        self.num_open = 0

    def __getattr__(self, name):
        known = _CALLS.get(name)
        if known is None:
            raise AttributeError(name)

        def call(*arguments):
            gpu = getattr(arguments[0], "gpu", None) if arguments else None
            code = self.failing.get((name, gpu), self.failing.get((name, None)))
            if code is not None:
                raise NvmlError(code)
            return known(self, *arguments)

        return call

    def ends(self, gpu):
        """Where each of the GPU's links leads."""
        found = []
        for (a, b), count in self.links.items():
            if gpu in (a, b):
                found += [b if gpu == a else a] * count
        return found


def bus_id(gpu):
    return f"00000000:{16 * gpu + 1:02X}:00.0"


def uuid(gpu):
    return f"GPU-{gpu:08d}-0000-0000-0000-000000000000"


def _open(nvml, step):
    nvml.num_open += step


def _state(nvml, handle, number):
    if number >= 6:
        raise NvmlError(3)
    return int(number < len(nvml.ends(handle.gpu)))


def _remote_type(nvml, handle, number):
    return 2 if nvml.ends(handle.gpu)[number] == "switch" else 0


def _remote(nvml, handle, number):
    end = nvml.ends(handle.gpu)[number]
    return SimpleNamespace(busId=b"00000000:FF:00.0" if end == "switch" else bus_id(end).encode())


def _mask(numbers, words):
    bits = sum(1 << number for number in numbers)
    return [bits >> 64 * at & (1 << 64) - 1 for at in range(words)]


def _unsupported(_nvml, *_arguments):
    raise NvmlError(3)


_CALLS = {
    "nvmlInit": lambda nvml: _open(nvml, 1),
    "nvmlShutdown": lambda nvml: _open(nvml, -1),
    "nvmlDeviceGetCount": lambda nvml: nvml.num_gpus,
    "nvmlDeviceGetHandleByIndex": lambda _nvml, gpu: SimpleNamespace(gpu=gpu),
    "nvmlDeviceGetUUID": lambda _nvml, handle: uuid(handle.gpu).encode(),
    "nvmlDeviceGetName": lambda _nvml, _handle: b"NVIDIA A100-SXM4-80GB",
    "nvmlDeviceGetMigMode": _unsupported,
    "nvmlDeviceGetPciInfo": lambda _nvml, handle: SimpleNamespace(busId=bus_id(handle.gpu).encode()),
    "nvmlDeviceGetTopologyCommonAncestor": lambda nvml, a, b: nvml.level(a.gpu, b.gpu),
    "nvmlDeviceGetNvLinkState": _state,
    "nvmlDeviceGetNvLinkRemoteDeviceType": _remote_type,
    "nvmlDeviceGetNvLinkRemotePciInfo": _remote,
    "nvmlDeviceGetCpuAffinity": lambda nvml, handle, words: _mask(nvml.cpus(handle.gpu), words),
    "nvmlDeviceGetMemoryAffinity": lambda nvml, handle, words, _scope: _mask([nvml.numa(handle.gpu)], words),
    "nvmlDeviceGetNumaNodeId": _unsupported,
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda _nvml, _handle: 4,
    "nvmlDeviceGetMaxPcieLinkWidth": lambda _nvml, _handle: 16,
    "nvmlDeviceGetP2PStatus": lambda nvml, a, b, _index: 5 if (a.gpu, b.gpu) in nvml.refused else 0,
}
