"""What `auto` becomes, with the reason: pure, so that --print-config says what a launch would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drivetrain.config.checks import ONE_PROCESS
from drivetrain.config.schema import RunConfig
from drivetrain.spec.errors import InputError
from drivetrain.spec.unknown import Unknown


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What this machine offers a run. A GPU count that could not be read is Unknown.

    `num_gpus_by_files` is the weaker evidence for that case: device files left by the driver.
    """

    num_gpus: int | Unknown
    gpu_reason: str
    num_cpus: int
    cpu_reason: str
    num_gpus_by_files: int | None = None


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """What the launcher settles. Each reason is one clause, printed as it is."""

    device: Literal["cpu", "cuda"]
    device_reason: str
    nproc_per_node: int
    nproc_reason: str

    def notes(self) -> tuple[str, ...]:
        return (
            f"device: {self.device} ({self.device_reason})",
            f"launch.nproc_per_node: {self.nproc_per_node} ({self.nproc_reason})",
        )


def resolve(config: RunConfig, resources: Resources) -> Resolved:
    """Settles the device and the number of processes on this machine.

    Raises:
        InputError: a GPU is asked for and none is visible, more processes than GPUs are asked for on CUDA,
            or the number of GPUs is needed and could not be read.
    """
    asked = config.launch.nproc_per_node
    if config.device == "cpu" or asked == "cpu":
        reason = "device: cpu" if config.device == "cpu" else "launch.nproc_per_node: cpu"
        if config.device == "cuda":
            raise InputError(
                "launch.nproc_per_node cpu", "device is cuda", "set one of them to match the other"
            )
        num_processes, why = _on_cpu(config, resources)
        return Resolved(device="cpu", device_reason=reason, nproc_per_node=num_processes, nproc_reason=why)
    num_gpus, gpu_reason = _num_gpus(config, resources)
    if num_gpus == 0:
        if config.device == "cuda" or asked == "gpu":
            what = "device cuda" if config.device == "cuda" else "launch.nproc_per_node gpu"
            raise InputError(
                what, f"no GPU is visible: {gpu_reason}", "add --device cpu, or make a GPU visible"
            )
        num_processes, why = _on_cpu(config, resources)
        return Resolved(
            device="cpu", device_reason=gpu_reason, nproc_per_node=num_processes, nproc_reason=why
        )
    num_processes, why = _on_gpus(config, num_gpus)
    return Resolved(device="cuda", device_reason=gpu_reason, nproc_per_node=num_processes, nproc_reason=why)


def _num_gpus(config: RunConfig, resources: Resources) -> tuple[int, str]:
    if not isinstance(resources.num_gpus, Unknown):
        return resources.num_gpus, resources.gpu_reason
    if resources.num_gpus_by_files:
        found = f"{resources.num_gpus_by_files} by device files, as NVML failed: {resources.num_gpus.reason}"
        return resources.num_gpus_by_files, found
    raise InputError(
        f"device {config.device}",
        f"how many GPUs are visible is {resources.num_gpus}",
        "repair the driver (try nvidia-smi), or add --device cpu",
    )


def _on_cpu(config: RunConfig, resources: Resources) -> tuple[int, str]:
    asked = config.launch.nproc_per_node
    if isinstance(asked, int):
        return asked, "as asked"
    if config.strategy in ONE_PROCESS:
        return 1, f"strategy: {config.strategy}"
    if asked == "cpu":
        return resources.num_cpus, f"one a CPU: {resources.cpu_reason}"
    return min(2, resources.num_cpus), f"up to 2 on the CPU: {resources.cpu_reason}"


def _on_gpus(config: RunConfig, num_gpus: int) -> tuple[int, str]:
    asked = config.launch.nproc_per_node
    if isinstance(asked, int):
        if asked > num_gpus:
            raise InputError(
                f"{asked} processes on GPUs",
                f"{num_gpus} visible, and a GPU serves one process",
                f"use --nproc-per-node {num_gpus}, or --device cpu",
            )
        return asked, "as asked"
    if config.strategy in ONE_PROCESS:
        return 1, f"strategy: {config.strategy}"
    return num_gpus, "one a visible GPU"
