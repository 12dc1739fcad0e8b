"""Repair commands in this distribution's words. Where the distribution is not known, all three are given."""

from __future__ import annotations

from typing import Final

from drivetrain.doctor.facts import NodeFacts, System
from drivetrain.hardware.distribution import Distribution
from drivetrain.hardware.gpu_models import find_gpu_model

_FIRST_OPEN: Final = 75  # Turing

_INSTALL: Final = {
    "apt": "sudo apt-get install {}",
    "dnf": "sudo dnf install {}",
    "zypper": "sudo zypper install {}",
}

# What is wanted → package by tool. Sources: the distributions' package indices and NVIDIA's driver guide.
_PACKAGES: Final[dict[str, dict[str, str]]] = {
    "driver": {
        "apt": "nvidia-driver",
        "dnf": "nvidia-open",
        "zypper": "nvidia-open-driver-G06-signed-kmp-default",
    },
    # The open kernel modules serve Turing and newer; older cards need the closed ones.
    "driver of older cards": {
        "apt": "nvidia-driver",
        "dnf": "cuda-drivers",
        "zypper": "nvidia-driver-G06-kmp-default",
    },
    "fabric manager": {
        "apt": "nvidia-fabricmanager-{branch}",
        "dnf": "nvidia-fabric-manager",
        "zypper": "nvidia-fabric-manager",
    },
    "verbs": {
        "apt": "rdma-core ibverbs-providers libibverbs1 infiniband-diags",
        "dnf": "rdma-core libibverbs infiniband-diags",
        "zypper": "rdma-core libibverbs1 infiniband-diags",
    },
    "subnet manager": {"apt": "opensm", "dnf": "opensm", "zypper": "opensm"},
    "clock": {"apt": "chrony", "dnf": "chrony", "zypper": "chrony"},
}


def install(system: System, what: str, *, branch: str = "BRANCH") -> str:
    """The command that installs `what`; `branch` is the driver's first number where the package has it."""
    packages = {tool: name.format(branch=branch) for tool, name in _PACKAGES[what].items()}
    distribution = system.distribution
    tool = distribution.tool if isinstance(distribution, Distribution) else ""
    is_driver = what.startswith("driver")
    if is_driver and isinstance(distribution, Distribution) and distribution.id == "ubuntu":
        return "sudo ubuntu-drivers install --gpgpu && sudo reboot"
    if tool:
        command = _INSTALL[tool].format(packages[tool])
        return f"{command} && sudo reboot" if is_driver else command
    every = (f"{_INSTALL[tool].format(name)}" for tool, name in packages.items())
    return "by distribution: " + " | ".join(every)


def install_driver(facts: NodeFacts) -> str:
    """The driver's own packages, by the oldest card that is known."""
    gpus = facts.gpus if isinstance(facts.gpus, tuple) else ()
    models = [find_gpu_model(gpu.name) for gpu in gpus if isinstance(gpu.name, str)]
    is_old = any(model is not None and model.capability < _FIRST_OPEN for model in models)
    return install(facts.system, "driver of older cards" if is_old else "driver")


def torch_wheel(cuda: str) -> str:
    """`"12.6"` → the command for a wheel built with it; `"cpu"` for the one without CUDA."""
    tag = "cpu" if cuda == "cpu" else "cu" + cuda.replace(".", "")
    return f"pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{tag}"


def reload_driver() -> str:
    """The same everywhere: a reboot is the one way that never fails."""
    return (
        "sudo reboot (or, with no process on the GPUs: sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia"
        " && sudo modprobe nvidia); afterwards hold the driver's packages, so that they are not updated under"
        " a running module"
    )
