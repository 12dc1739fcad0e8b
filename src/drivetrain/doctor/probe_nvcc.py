"""nvcc and libraries that lie system-wide."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from drivetrain.spec.unknown import Unknown

_LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/local/cuda/lib64",
)


def read_nvcc(environ: Mapping[str, str]) -> str | Unknown:
    """The version of the nvcc that an extension's build would take: CUDA_HOME's, else PATH's."""
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    candidates = [f"{home}/bin/nvcc"] if home else []
    candidates += [found for found in (shutil.which("nvcc", path=environ.get("PATH")),) if found]
    candidates.append("/usr/local/cuda/bin/nvcc")
    path = next((name for name in candidates if Path(name).is_file()), None)
    if path is None:
        return Unknown("there is no nvcc (needed only where extensions are compiled)")
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Unknown(f"{path} cannot be run: {error}")
    match = re.search(r"release [\d.]+, V([\d.]*\d)", done.stdout)
    return match.group(1) if match else Unknown(f"{path} prints no version")


def read_system_libraries(stem: str, root: Path = Path("/")) -> tuple[str, ...]:
    """Versions of `libcudnn` or `libnccl` outside Python's environment, by file name."""
    found = set()
    for folder in _LIBRARY_FOLDERS:
        for path in (root / folder).glob(f"{stem}.so.*"):
            version = path.name.split(".so.", 1)[1]
            if version.count(".") >= 2:
                found.add(version)
    return tuple(sorted(found))
