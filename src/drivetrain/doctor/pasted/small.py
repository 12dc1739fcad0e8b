"""Small things between the large blocks: `nvcc --version`, Xid lines, `topo -m`, Python's errors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from drivetrain.doctor.facts import ABSENT, Driver, Gpu, Libraries, Torch, XidEvent
from drivetrain.doctor.pasted.blocks import Block

_NVCC = re.compile(r"Cuda compilation tools, release [\d.]+, V(?P<version>[\d.]*\d)")
_XID = re.compile(
    r"NVRM:.*?Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F]{1,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)\):"
    r"\s*(?P<number>\d{1,4})\b"
)
_TOPO = re.compile(r"^\s*(?:\|\s*)?GPU0\s+GPU1\b|^\s*(?:GPU\d+\s+)+(?:(?:NIC|mlx)\w*\s+)*CPU Affinity")
_TOPO_ROW = re.compile(r"^\s*GPU\d+\s+(?:X|NV\d+|SYS|SOC|NODE|PHB|PXB|PIX|PIXB)\b")
_MODULE = re.compile(r"NVRM version: .*?(?P<version>\d{3}\.\d{1,4}(?:\.\d{1,3})?)\s")
_NO_KERNELS = re.compile(
    r"(?P<name>[A-Z][\w ./()-]{2,60}?) with CUDA capability sm_(?P<capability>\d{2,3}) is not compatible"
)
_BUILT_FOR = re.compile(r"supports CUDA capabilities (?P<archs>(?:sm_\d{2,3}[\s,]*)+)")
_CUDA_TROUBLE = re.compile(
    r"(?P<text>The NVIDIA driver on your system is too old \(found version \d+\)|Found no NVIDIA"
    r" driver on your system"
    r"|CUDA unknown error|CUDA driver version is insufficient for CUDA runtime version"
    r"|Error 80[0-9]: [a-z ]{4,60}|all CUDA-capable devices are busy or unavailable)"
)
_IMPORT_ERROR = re.compile(
    r"^\s*(?:ImportError|OSError|ModuleNotFoundError): (?P<text>.*(?:undefined"
    r" symbol|libtorch|libc10|libcuda|libcudnn"
    r"|libnccl|libcublas|libcusparse|No module named 'torch').*)$"
)


def small_blocks(lines: Sequence[str]) -> list[Block]:
    blocks = []
    for at, line in enumerate(lines):
        if (match := _NVCC.search(line)) is not None:
            blocks.append(Block(kind="nvcc", line=at, libraries=Libraries(nvcc=match["version"])))
        elif (match := _IMPORT_ERROR.match(line)) is not None:
            blocks.append(
                Block(kind="import error", line=at, torch=Torch(import_error=match["text"].strip()[:300]))
            )
        elif (match := _MODULE.search(line + " ")) is not None:
            module = Driver(kernel_module=match["version"], has_open_modules="Open Kernel Module" in line)
            blocks.append(Block(kind="kernel module", line=at, driver=module))
        elif (match := _NO_KERNELS.search(line)) is not None:
            blocks.append(_no_kernels(at, match, lines[at : at + 3]))
        elif (match := _CUDA_TROUBLE.search(line)) is not None:
            trouble = Torch(cuda_available=False, cuda_problem=match["text"])
            blocks.append(Block(kind="CUDA error", line=at, torch=trouble))
    xids = Counter(
        (int(match["number"]), match["bus"].upper()) for line in lines if (match := _XID.search(line))
    )
    if xids:
        events = tuple(
            XidEvent(number=number, bus_id=bus, count=seen) for (number, bus), seen in xids.items()
        )
        blocks.append(Block(kind="kernel log", line=0, xids=events))
    return blocks


def _no_kernels(at: int, match: re.Match[str], near: Sequence[str]) -> Block:
    """torch's warning about a GPU that the wheel has no kernels for, with the list that it prints."""
    built = _BUILT_FOR.search(" ".join(near))
    archs = tuple(int(number) for number in re.findall(r"sm_(\d+)", built["archs"])) if built else ABSENT
    gpu = Gpu(index=0, name=match["name"].strip(), capability=int(match["capability"]))
    return Block(
        kind="CUDA error",
        line=at,
        gpus=(gpu,),
        torch=Torch(archs=archs, cuda_problem=match.group().strip()),
    )


def count_topologies(lines: Sequence[str]) -> int:
    """How many `nvidia-smi topo -m` matrices the text holds; what is in them is for `drivetrain topo`."""
    heads = sum(bool(_TOPO.search(line)) for line in lines)
    return heads or (1 if any(_TOPO_ROW.match(line) for line in lines) else 0)
