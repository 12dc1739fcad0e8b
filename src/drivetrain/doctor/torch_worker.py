"""Imports torch and says what it finds, in its own process: `python -m drivetrain.doctor.torch_worker`."""

from __future__ import annotations

import re
import site
import sys
import warnings
from pathlib import Path
from typing import Any

from drivetrain.doctor.child import answer

_CUDA_LIBRARIES = re.compile(
    r"/(?P<name>libcudnn|libcublasLt|libcublas|libnccl|libcudart|libcusparse|libcusolver|libcufft|libnvrtc"
    r"|libcuda)\.so[^/]*$"
)


def main() -> None:
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
        problem = next((str(item.message) for item in caught if "CUDA" in str(item.message)), "")
        if not available and torch.version.cuda is not None:
            problem = problem or _start_error(torch)
    values: dict[str, Any] = {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "rocm": torch.version.hip or "",
        "cuda_available": available,
        "cuda_problem": problem.splitlines()[0][:400] if problem else "",
        "archs": [int(name) for name in re.findall(r"sm_(\d+)", " ".join(_arch_list(torch)))],
        "cudnn": _cudnn(torch),
        "nccl": _nccl(torch),
        "num_gpus": torch.cuda.device_count() if available else 0,
        "peer_access": _peers(torch) if available else [],
        "numpy_works": _numpy_works(torch),
        "loaded": _loaded(),
    }
    answer(values)


def _start_error(torch: Any) -> str:
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error)
    return ""


def _arch_list(torch: Any) -> list[str]:
    # get_arch_list() is empty without a GPU; the flags it reads are those of the build.
    flags = torch._C._cuda_getArchFlags() if hasattr(torch._C, "_cuda_getArchFlags") else None
    return (flags or "").split()


def _cudnn(torch: Any) -> str:
    number = torch.backends.cudnn.version()
    if number is None:
        return ""
    # 92400 is 9.24.0; up to version 8 it was 8902 for 8.9.2.
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _nccl(torch: Any) -> str:
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return ""
    return ".".join(str(part) for part in torch.cuda.nccl.version()[:3])


def _peers(torch: Any) -> list[list[Any]]:
    count = torch.cuda.device_count()
    return [
        [a, b, bool(torch.cuda.can_device_access_peer(a, b))]
        for a in range(count)
        for b in range(count)
        if a != b
    ]


def _numpy_works(torch: Any) -> bool | None:
    try:
        import numpy  # noqa: F401
    except ImportError:
        return None
    try:
        return bool(torch.ones(2).numpy().sum() == 2)
    except RuntimeError:  # "Numpy is not available": built for another ABI
        return False


def _loaded() -> list[dict[str, Any]]:
    """CUDA libraries that this process has mapped, by /proc/self/maps."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    roots = {
        str(Path(root).resolve())
        for root in (sys.prefix, *site.getsitepackages(), site.getusersitepackages())
    }
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        match = _CUDA_LIBRARIES.search(line)
        if match is None:
            continue
        path = line.split(maxsplit=5)[-1]
        inside = any(Path(path).is_relative_to(root) for root in roots)
        found.setdefault(path, {"name": match["name"], "path": path, "is_from_wheel": inside})
    return list(found.values())


if __name__ == "__main__":
    main()
