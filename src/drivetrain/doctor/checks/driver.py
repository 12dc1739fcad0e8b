"""Driver ↔ CUDA ↔ torch build ↔ GPU architecture, and what stands in the way of a driver."""

from __future__ import annotations

import re

from drivetrain.doctor.facts import ABSENT, Gpu, NodeFacts
from drivetrain.doctor.finding import Check, Verdict, failed, not_checked, passed, warned
from drivetrain.doctor.fixes import install_driver, reload_driver, torch_wheel
from drivetrain.hardware.cuda_versions import (
    MINOR_VERSION_FLOORS,
    Version,
    newest_cuda_of_driver,
    oldest_driver_for_cuda,
    parse_version,
    show_version,
)
from drivetrain.hardware.gpu_models import find_gpu_model
from drivetrain.hardware.torch_wheels import runs_on, wheel_archs
from drivetrain.spec.unknown import Unknown

AREA = "Driver, CUDA, torch"


def driver(facts: NodeFacts) -> Verdict:
    trouble = facts.driver.trouble
    if isinstance(trouble, str) and trouble:
        return failed(trouble, "a driver that answers", _driver_fix(facts, trouble))
    if isinstance(facts.driver.version, str):
        return passed(f"NVIDIA driver {facts.driver.version}", "a driver that answers")
    devices = facts.system.nvidia_pci_devices
    if isinstance(devices, int) and devices > 0:
        return failed(
            f"{devices} NVIDIA devices on the PCI bus, but {facts.driver.version.reason}",
            "a driver that answers",
            _driver_fix(facts, ""),
        )
    if isinstance(devices, int) and facts.is_live:
        return passed("no NVIDIA GPU on the PCI bus: none is needed, and training runs on the CPU", "")
    return not_checked(facts.driver.version.reason)


def _driver_fix(facts: NodeFacts, trouble: str) -> str:
    text = trouble.lower()
    if "mismatch" in text:
        return reload_driver()
    if "unknown error" in text or "insufficient permissions" in text:
        return (
            "in a container: it lost its GPU devices (systemd reloaded, cgroup v2); create it anew,"
            " and keep it"
            " with --device=/dev/nvidia0 … or CDI; on the host: sudo dmesg | grep NVRM"
        )
    if "no devices" in text:
        return (
            "sudo dmesg | grep -i -e NVRM -e nvidia tells why the driver left the GPUs out; then power-cycle"
        )
    if "not found" in text and isinstance(facts.system.container, str) and facts.system.container:
        return "start the container with the NVIDIA runtime: docker run --gpus all …"
    steps = [install_driver(facts)]
    if facts.system.secure_boot is True:
        steps.append(
            "Secure Boot is on: the module must be signed; enrol the key: sudo mokutil --import"
            " /var/lib/dkms/mok.pub (Ubuntu: /var/lib/shim-signed/mok/MOK.der), reboot, confirm"
        )
    if facts.system.nouveau_loaded is True:
        steps.append(
            "nouveau holds the GPU: echo -e 'blacklist nouveau\\noptions nouveau modeset=0' | sudo tee"
            " /etc/modprobe.d/blacklist-nouveau.conf, rebuild the initramfs, reboot"
        )
    return "; ".join(steps)


def driver_module(facts: NodeFacts) -> Verdict:
    trouble = facts.driver.trouble
    library, module = facts.driver.version, facts.driver.kernel_module
    if isinstance(trouble, str) and "mismatch" in trouble.lower():
        told = f"library {library}, kernel module {module}" if isinstance(module, str) else trouble
        return failed(told, "library and kernel module of one version", reload_driver())
    if isinstance(library, Unknown):
        return not_checked(library.reason)
    if isinstance(module, Unknown):
        return not_checked(module.reason)
    if library != module:
        return failed(
            f"library {library}, kernel module {module}",
            "library and kernel module of one version",
            reload_driver(),
        )
    return passed(f"both {library}", "library and kernel module of one version")


def secure_boot(facts: NodeFacts) -> Verdict:
    if facts.system.nouveau_loaded is True:
        return warned(
            "the nouveau driver is loaded: NVIDIA's cannot take the GPU",
            "nouveau not loaded",
            _driver_fix(facts, ""),
        )
    state = facts.system.secure_boot
    if isinstance(state, Unknown):
        return not_checked(state.reason)
    if state and not isinstance(facts.driver.kernel_module, str) and facts.system.nvidia_pci_devices != 0:
        return warned(
            "Secure Boot is on, and no NVIDIA module is loaded: an unsigned module is refused",
            "a signed module, or Secure Boot off",
            _driver_fix(facts, ""),
        )
    return passed(
        f"Secure Boot {'on' if state else 'off'}, nouveau not loaded", "nothing in the driver's way"
    )


def torch_imports(facts: NodeFacts) -> Verdict:
    error = facts.torch.import_error
    if isinstance(error, Unknown):
        return not_checked(error.reason)
    if not error:
        return passed(f"torch {facts.torch.version}", "import torch works")
    return failed(f"torch cannot be imported: {error}", "import torch works", _import_fix(facts, error))


def _import_fix(facts: NodeFacts, error: str) -> str:
    if facts.system.is_jetson is True:
        return (
            "on Jetson only NVIDIA's own wheels work: python3 -c 'import torch' shows the error;"
            " install the wheel"
            " of your JetPack (head -1 /etc/nv_tegra_release) from NVIDIA's Jetson index, and clean"
            " LD_LIBRARY_PATH"
        )
    if "nccl" in error.lower():
        return (
            "another NCCL is loaded than the wheel's: unset LD_LIBRARY_PATH; pip list | grep nccl"
            " must show one"
        )
    if "No module named" in error:
        return "pip install torch"
    if "libcuda.so" in error:
        return install_driver(facts)
    return (
        "python -c 'import torch' shows the error; undefined symbols come from a library of another version:"
        " unset LD_LIBRARY_PATH, then pip install --force-reinstall torch"
    )


def torch_build(facts: NodeFacts) -> Verdict:
    if isinstance(facts.torch.version, Unknown):
        return not_checked(facts.torch.version.reason)
    cuda, rocm = facts.torch.cuda, facts.torch.rocm
    if isinstance(rocm, str) and rocm:
        return passed(f"torch {facts.torch.version} for ROCm {rocm}", "")
    if isinstance(cuda, Unknown):
        return not_checked(cuda.reason)
    if cuda:
        return passed(
            f"torch {facts.torch.version}, built with CUDA {cuda}", "a build with CUDA where there are GPUs"
        )
    found = f"torch {facts.torch.version} is a CPU-only build"
    if _has_gpu(facts):
        return failed(
            f"{found}, and there are NVIDIA GPUs", "a build with CUDA", torch_wheel(_wanted_cuda(facts))
        )
    if facts.is_live and facts.gpus == ():
        return passed(f"{found}, which fits: there is no GPU here", "a build with CUDA where there are GPUs")
    return warned(
        f"{found}: GPUs, if there are any, are not used",
        "a build with CUDA where there are GPUs",
        torch_wheel(_wanted_cuda(facts)),
    )


def _has_gpu(facts: NodeFacts) -> bool:
    return (isinstance(facts.gpus, tuple) and bool(facts.gpus)) or isinstance(facts.driver.version, str)


def _wanted_cuda(facts: NodeFacts) -> str:
    """The newest CUDA of torch's wheels that this driver starts: 12.6 where the driver is not known."""
    version = parse_version(facts.driver.version) if isinstance(facts.driver.version, str) else None
    return "13.0" if version is not None and version >= MINOR_VERSION_FLOORS[13] else "12.6"


def driver_cuda(facts: NodeFacts) -> Verdict:
    brings = _brings(facts)
    cuda_text = facts.torch.cuda
    if isinstance(cuda_text, Unknown):
        told = f"; {brings[1]}" if brings else ""
        return not_checked(f"torch's CUDA: {cuda_text.reason}{told}")
    if not cuda_text:
        return not_checked("torch is built without CUDA")
    cuda = parse_version(cuda_text)
    if brings is None or cuda is None:
        reason = (
            facts.driver.version.reason if isinstance(facts.driver.version, Unknown) else "a version is odd"
        )
        return not_checked(f"the driver: {reason}")
    newest, told = brings
    expected = f"a driver for CUDA {cuda_text}"
    version = parse_version(facts.driver.version) if isinstance(facts.driver.version, str) else None
    floor = oldest_driver_for_cuda(cuda)
    if newest >= cuda[:2]:
        return passed(f"{told}; torch is built with CUDA {cuda_text}", expected)
    if version is not None and floor is not None and version >= floor:
        return passed(
            f"{told}; torch is built with CUDA {cuda_text}: it runs by minor-version compatibility (driver ≥"
            f" {show_version(floor)}), without what only a newer driver can",
            expected,
        )
    if isinstance(facts.driver.cuda_compat, str) and facts.driver.cuda_compat:
        return warned(
            f"{told}; torch needs CUDA {cuda_text}, through the forward compatibility package in"
            f" {facts.driver.cuda_compat}",
            f"{expected}; forward compatibility works on data-centre GPUs only",
            f"update the driver: {install_driver(facts)}",
        )
    if floor is None and version is not None and newest[0] >= 13:
        return not_checked(f"{told}; CUDA {cuda_text} is newer than the table")
    at_least = f" (≥ {show_version(floor)})" if floor is not None else ""
    return failed(
        f"{told}; torch is built with CUDA {cuda_text}",
        f"{expected}{at_least}",
        f"{install_driver(facts)}; or a wheel for this driver: {_older_wheel(newest, version)}",
    )


def _older_wheel(newest: Version, driver_version: Version | None) -> str:
    if driver_version is not None and driver_version >= MINOR_VERSION_FLOORS[12]:
        return torch_wheel("12.6")
    if newest >= (11, 8) or (driver_version is not None and driver_version >= MINOR_VERSION_FLOORS[11]):
        return "pip install 'torch<2.8' --index-url https://download.pytorch.org/whl/cu118"
    return f"one built with CUDA {show_version(newest)} or older, which no current torch is"


def _brings(facts: NodeFacts) -> tuple[Version, str] | None:
    """The newest CUDA of the driver, and how that is known."""
    version = parse_version(facts.driver.version) if isinstance(facts.driver.version, str) else None
    newest = newest_cuda_of_driver(version) if version is not None else None
    shown = facts.driver.max_cuda_shown
    if isinstance(shown, str) and (by_tool := parse_version(shown)) is not None:
        # With a forward compatibility package, the tool shows what that package brings.
        return by_tool[:2], f"driver {facts.driver.version} brings CUDA {shown}"
    if newest is not None:
        return newest, f"driver {facts.driver.version} brings CUDA {show_version(newest)} at most"
    nccl = facts.nccl
    if not isinstance(nccl, Unknown) and isinstance(nccl.cuda_driver, str):
        by_nccl = parse_version(nccl.cuda_driver)
        return (by_nccl, f"the driver brings CUDA {nccl.cuda_driver} (by NCCL)") if by_nccl else None
    return None


def nccl_cuda(facts: NodeFacts) -> Verdict:
    """What NCCL's start says of the driver; torch is not in such a log."""
    if isinstance(facts.nccl, Unknown) or isinstance(facts.nccl.cuda_driver, Unknown):
        return not_checked("no cudaDriverVersion line of NCCL")
    return passed(f"the driver brings CUDA {facts.nccl.cuda_driver}", "")


def cuda_starts(facts: NodeFacts) -> Verdict:
    available, cuda = facts.torch.cuda_available, facts.torch.cuda
    if isinstance(available, Unknown):
        return not_checked(available.reason)
    if available:
        count = facts.torch.num_gpus
        told = f", {count} GPUs" if isinstance(count, int) else ""
        return passed(f"torch.cuda.is_available() is true{told}", "CUDA starts")
    if not isinstance(cuda, str) or not cuda:
        return not_checked("torch is built without CUDA")
    problem = facts.torch.cuda_problem
    why = f": {problem}" if isinstance(problem, str) and problem else ""
    if not _has_gpu(facts):
        if facts.is_live and facts.gpus == ():
            return passed("no GPU here: torch runs on the CPU", "CUDA starts where there are GPUs")
        told = why or ", and no GPU or driver is reported"
        return failed(f"torch.cuda.is_available() is false{told}", "CUDA starts", _cuda_fix(facts, why))
    return failed(
        f"torch.cuda.is_available() is false although there are GPUs{why}",
        "CUDA starts",
        _cuda_fix(facts, why),
    )


def _cuda_fix(facts: NodeFacts, problem: str) -> str:
    text = problem.lower()
    if "too old" in text:
        brings = _brings(facts)
        version = parse_version(facts.driver.version) if isinstance(facts.driver.version, str) else None
        wheel = f"; or a wheel for this driver: {_older_wheel(brings[0], version)}" if brings else ""
        return install_driver(facts) + wheel
    if facts.host.cuda_visible_devices in ("", "-1"):
        return "unset CUDA_VISIBLE_DEVICES"
    if "802" in text or "system not yet initialized" in text:
        return "start Fabric Manager: sudo systemctl enable --now nvidia-fabricmanager"
    if "no nvidia driver" in text or not _has_gpu(facts):
        return f"{install_driver(facts)}; in a container: docker run --gpus all …"
    if "unknown error" in text:
        return (
            "sudo modprobe nvidia_uvm (after sleep: sudo rmmod nvidia_uvm && sudo modprobe"
            " nvidia_uvm), or reboot"
        )
    return "python -c 'import torch; torch.cuda.init()' tells why"


def gpu_arch(facts: NodeFacts) -> Verdict:
    if isinstance(facts.gpus, Unknown) or not facts.gpus:
        return not_checked(facts.gpus.reason if isinstance(facts.gpus, Unknown) else "no GPU here")
    archs = _archs(facts)
    problem = facts.torch.cuda_problem
    if isinstance(problem, str) and re.search(r"is not compatible|sm_\d+ is not", problem):
        return failed(problem, "kernels for this GPU in the wheel", _arch_fix(facts.gpus))
    if isinstance(archs, Unknown):
        return not_checked(archs.reason)
    unknown, missing, seen = [], [], set()
    for gpu in facts.gpus:
        capability = _capability(gpu)
        if capability is None:
            unknown.append(f"{gpu.label} ({gpu.name if isinstance(gpu.name, str) else 'no name'})")
        elif runs_on(archs, capability):
            seen.add(f"sm_{capability}")
        else:
            missing.append(f"{gpu.label} ({gpu.name}) is sm_{capability}")
    listed = " ".join(f"sm_{arch}" for arch in archs)
    if missing:
        return failed(
            f"{'; '.join(missing[:4])}; torch has kernels for {listed}",
            "kernels for every GPU",
            _arch_fix(facts.gpus),
        )
    if unknown:
        return not_checked(f"compute capability not known: {', '.join(unknown[:4])}")
    return passed(f"{', '.join(sorted(seen))}; torch has kernels for {listed}", "kernels for every GPU")


def _archs(facts: NodeFacts) -> tuple[int, ...] | Unknown:
    if isinstance(facts.torch.archs, tuple):
        return facts.torch.archs or Unknown("torch is built without CUDA")
    if isinstance(facts.torch.version, Unknown) or isinstance(facts.torch.cuda, Unknown):
        return Unknown("torch's version or its CUDA is not known")
    torch, cuda = parse_version(facts.torch.version), parse_version(facts.torch.cuda)
    if facts.system.machine not in ("x86_64", ABSENT):
        return Unknown(f"the table of wheels is for x86_64, this is {facts.system.machine}")
    archs = wheel_archs(torch, cuda) if torch and cuda else None
    return archs or Unknown(f"kernels of torch {facts.torch.version} are not in the table")


def _capability(gpu: Gpu) -> int | None:
    if isinstance(gpu.capability, int):
        return gpu.capability
    model = find_gpu_model(gpu.name) if isinstance(gpu.name, str) else None
    return model.capability if model is not None else None


def _arch_fix(gpus: tuple[Gpu, ...]) -> str:
    newest = max((capability for gpu in gpus if (capability := _capability(gpu)) is not None), default=0)
    if newest >= 100:
        return torch_wheel("13.0")
    if newest and newest < 50:
        return (
            "no current wheel has kernels for this GPU: torch ≤ 2.3 (cu118) goes back to sm_37;"
            " else build torch"
        )
    return torch_wheel("12.6")


CHECKS = (
    Check(id="driver", area=AREA, judge=driver),
    Check(id="driver_module", area=AREA, judge=driver_module),
    Check(id="secure_boot", area=AREA, judge=secure_boot),
    Check(id="torch_imports", area=AREA, judge=torch_imports),
    Check(id="torch_build", area=AREA, judge=torch_build),
    Check(id="driver_cuda", area=AREA, judge=driver_cuda),
    Check(id="nccl_cuda", area=AREA, judge=nccl_cuda),
    Check(id="cuda_starts", area=AREA, judge=cuda_starts),
    Check(id="gpu_arch", area=AREA, judge=gpu_arch),
)
