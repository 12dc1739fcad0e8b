"""This machine's wiring: from NVML, else `nvidia-smi topo -m`, else sysfs; or from a pasted matrix."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path
from typing import Any

from drivetrain.hardware.topology.graph import Topology
from drivetrain.hardware.topology.matrix import read_matrices
from drivetrain.hardware.topology.nvml import NvmlUnavailableError, read_nvml
from drivetrain.hardware.topology.sysfs import read_sysfs
from drivetrain.spec.errors import InputError

_SMI_TIMEOUT_S = 30.0
_MOST_BYTES = 64 << 20


def read_machine(*, nvml: Any = None, smi: str = "nvidia-smi", root: Path = Path("/")) -> Topology:
    """The wiring of this machine. `unknown` says what the sources that were tried first could not give.

    Args:
        nvml: the module to ask, for tests; None imports nvidia-ml-py.
        smi: the program that prints the matrix.
        root: where /sys and /proc are found.
    """
    reasons = []
    try:
        topology = read_nvml(nvml, root)
        if topology.gpus:
            return topology
        reasons.append("NVML shows no GPU")
    except NvmlUnavailableError as error:
        reasons.append(str(error))
    printed = _run_smi(smi)
    if isinstance(printed, bytes):
        matrices = read_matrices(printed, f"{smi} topo -m")
        if matrices:
            return dataclasses.replace(matrices[0], unknown=(*matrices[0].unknown, *reasons))
        reasons.append(f"{smi} topo -m printed no matrix")
    else:
        reasons.append(printed)
    topology = read_sysfs(root)
    return dataclasses.replace(topology, unknown=(*topology.unknown, *reasons))


def _run_smi(smi: str) -> bytes | str:
    """What `nvidia-smi topo -m` printed, or why it did not."""
    try:
        done = subprocess.run(
            [smi, "topo", "-m"],
            capture_output=True,
            timeout=_SMI_TIMEOUT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return f"{smi} is not installed"
    except subprocess.TimeoutExpired:
        return f"{smi} topo -m did not end within {_SMI_TIMEOUT_S:.0f} s"
    except OSError as error:
        return f"{smi} cannot be run: {error.strerror}"
    if done.returncode:
        first = done.stdout.decode(errors="replace").strip().splitlines()[:1]
        return f"{smi} topo -m ended with exit code {done.returncode}" + "".join(
            f": {line}" for line in first
        )
    return done.stdout


def read_file(path: Path, content: bytes | None = None) -> list[Topology]:
    """The matrices in a file, the one to show first first (see `read_matrices`).

    Args:
        content: what was read from it already, as from standard input.

    Raises:
        InputError: it cannot be read, or holds no matrix.
    """
    if content is None:
        try:
            with path.open("rb") as file:
                content = file.read(_MOST_BYTES)
        except OSError as error:
            raise InputError(
                f"--from {path}", f"it cannot be read: {error.strerror}", "check the path"
            ) from error
    matrices = read_matrices(content, str(path))
    if not matrices:
        raise InputError(
            f"--from {path}",
            "it holds no matrix of GPUs",
            "paste what `nvidia-smi topo -m` prints, with its heading",
        )
    return matrices
