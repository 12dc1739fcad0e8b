"""torchrun's words for machines and processes, read in one place for every verb that launches."""

from __future__ import annotations

import re

from drivetrain.spec.errors import InputError

# torchrun's environment defaults (Kubeflow's trainer sets them): variable → key of the run file.
PET_VARIABLES = {
    "PET_NNODES": "launch.nnodes",
    "PET_NPROC_PER_NODE": "launch.nproc_per_node",
    "PET_NODE_RANK": "launch.node_rank",
    "PET_MASTER_ADDR": "launch.master_addr",
    "PET_MASTER_PORT": "launch.master_port",
    "PET_RDZV_ENDPOINT": "launch.rdzv_endpoint",
    "PET_RDZV_ID": "launch.rdzv_id",
    "PET_LOCAL_ADDR": "launch.local_addr",
    "PET_MAX_RESTARTS": "launch.max_restarts",
    "PET_STANDALONE": "launch.standalone",
}

_NODES = re.compile(r"([0-9]{1,6})(?::([0-9]{1,6}))?")
_CLOCK = re.compile(r"(?:([0-9]{1,3})-)?([0-9]{1,3}):([0-5]?[0-9]):([0-5]?[0-9])")
_DURATION = re.compile(
    r"(?:([0-9]{1,3})d)?(?:([0-9]{1,4})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,8}(?:\.[0-9]+)?)s?)?"
)
_LAYOUT = re.compile(r"([0-9]{1,6}(?::[0-9]{1,6})?)[xX]([0-9]{1,6}|auto|gpu|cpu)")


def split_nodes(text: str) -> tuple[int, int]:
    """The fewest and the most machines that `--nnodes N` or `--nnodes MIN:MAX` asks for.

    Raises:
        InputError: it is neither, or not 1 ≤ MIN ≤ MAX.
    """
    match = _NODES.fullmatch(text)
    if match is None:
        raise InputError(f"--nnodes {text}", "it is neither N nor MIN:MAX", "write for example --nnodes 2")
    fewest, most = int(match[1]), int(match[2] or match[1])
    if not 1 <= fewest <= most:
        raise InputError(f"--nnodes {text}", "not 1 ≤ MIN ≤ MAX", "write for example --nnodes 1:4")
    return fewest, most


def duration_s(text: str) -> float:
    """Seconds of a duration: 90 (seconds), 90s, 45m, 3h55m, 1d; as schedulers write it: 3:55:00, 1-12:00:00.

    Raises:
        InputError: it is none of these, or nothing.
    """
    clock = _CLOCK.fullmatch(text)
    words = _DURATION.fullmatch(text)
    if clock is not None:
        parts, units = clock.groups(default="0"), (86400, 3600, 60, 1)
    elif words is not None and text:
        parts, units = words.groups(default="0"), (86400, 3600, 60, 1)
    else:
        raise InputError(
            f"a duration of {text!r}", "it is none", "write for example 90s, 45m, 3h55m or 3:55:00"
        )
    seconds = sum(float(part) * unit for part, unit in zip(parts, units, strict=True))
    if seconds <= 0:
        raise InputError(f"a duration of {text!r}", "it is nothing", "write for example 45m")
    return seconds


def split_layout(text: str) -> tuple[str, str]:
    """TorchX's `-j 2x8` as the texts of `--nnodes` and `--nproc-per-node`.

    Raises:
        InputError: it is no machines × processes.
    """
    match = _LAYOUT.fullmatch(text)
    if match is None:
        raise InputError(f"-j {text}", "it is not NODESxPROCESSES", "write for example -j 2x8")
    return match[1], match[2]
