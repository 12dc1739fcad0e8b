"""Driver ↔ CUDA ↔ torch ↔ GPU, and the repair in the distribution's words."""

from __future__ import annotations

import pytest
from doctor_captures import COLLECT_ENV, COLLECT_ENV_NO_TORCH, COLLECT_ENV_OLD, MISMATCH

from drivetrain.doctor.facts import Driver, Gpu, Host, NodeFacts, System, Torch
from drivetrain.hardware.distribution import Distribution
from drivetrain.spec.unknown import Unknown


def facts(driver="", torch="2.9.1", cuda="12.8", gpu="NVIDIA A100-SXM4-80GB"):
    return NodeFacts(
        node="n",
        driver=Driver(version=driver) if driver else Driver(),
        torch=Torch(version=torch, cuda=cuda, import_error=""),
        gpus=(Gpu(index=0, name=gpu),),
        system=System(machine="x86_64", distribution=Distribution(id="ubuntu")),
    )


@pytest.mark.parametrize(
    "driver, cuda, status, words",
    [
        ("580.95.05", "13.0", "pass", "brings CUDA 13.0"),
        ("535.104.05", "12.8", "pass", "minor-version compatibility"),
        ("525.60.13", "12.9", "pass", "minor-version"),
        ("470.82.01", "11.8", "pass", "minor-version"),
        ("450.80.01", "11.8", "fail", "CUDA 11.0 at most"),
        ("550.54.14", "13.0", "fail", "CUDA 12.4 at most"),
        ("440.33.01", "10.2", "pass", "CUDA 10.2"),
        ("418.39", "10.2", "fail", "CUDA 10.1"),
        ("", "12.8", "not_checked", "the driver"),
        ("580.95.05", "", "not_checked", "without CUDA"),
    ],
)
def test_the_driver_must_bring_torchs_cuda_or_be_compatible_with_it(check, driver, cuda, status, words):
    finding = check("driver_cuda", facts(driver, cuda=cuda))
    assert (finding.status, words in finding.found) == (status, True), finding


def test_forward_compatibility_is_named(check):
    compat = Driver(version="535.104.05", cuda_compat="/usr/local/cuda/compat")
    finding = check(
        "driver_cuda", NodeFacts(node="n", driver=compat, torch=Torch(version="2.9.1", cuda="13.0"))
    )
    assert (finding.status, "forward compatibility" in finding.found) == ("warn", True)


@pytest.mark.parametrize(
    "torch, cuda, gpu, status",
    [
        ("2.5.1+cu124", "12.4", "NVIDIA GeForce RTX 5090", "fail"),
        ("2.9.1+cu130", "13.0", "NVIDIA GeForce RTX 5090", "pass"),
        ("2.9.1+cu130", "13.0", "Tesla V100-PCIE...", "fail"),
        ("2.6.0+cu126", "12.6", "Tesla V100-PCIE...", "pass"),
        ("2.6.0+cu126", "12.6", "NVIDIA L4", "pass"),
        ("2.6.0+cu126", "12.6", "Some future GPU", "not_checked"),
        ("2.6.0", "12.7", "NVIDIA L4", "not_checked"),
    ],
)
def test_the_wheel_must_have_kernels_for_the_gpu(check, torch, cuda, gpu, status):
    assert check("gpu_arch", facts("580.95.05", torch=torch, cuda=cuda, gpu=gpu)).status == status


def test_torchs_own_list_of_kernels_beats_the_table(check):
    own = Torch(version="2.9.1", cuda="13.0", archs=(90,))
    finding = check("gpu_arch", NodeFacts(node="n", torch=own, gpus=(Gpu(index=0, name="x", capability=80),)))
    assert (finding.status, "sm_80" in finding.found) == ("fail", True)


@pytest.mark.parametrize(
    "text, name, status, words",
    [
        (COLLECT_ENV_NO_TORCH, "torch_imports", "fail", "import failed"),
        (COLLECT_ENV_NO_TORCH, "gpu_arch", "not_checked", "does not say that there is none"),
        (COLLECT_ENV_NO_TORCH, "driver", "not_checked", "Could not collect"),
        (COLLECT_ENV_OLD, "driver_cuda", "fail", "driver 390.30 brings CUDA 9.1"),
        (COLLECT_ENV_OLD, "cuda_starts", "fail", "too old"),
        (COLLECT_ENV, "driver_cuda", "pass", "CUDA 12.2"),
        (MISMATCH, "driver_module", "fail", "library 535.161, kernel module 535.129.03"),
        (MISMATCH, "driver", "fail", "mismatch"),
        (
            "PyTorch version: 2.3.0+cpu\nGPU models and configuration: GPU 0: NVIDIA L4",
            "torch_build",
            "fail",
            "CPU-only",
        ),
        ("OSError: libcuda.so.1: cannot open shared object file", "torch_imports", "fail", "libcuda"),
        (
            (
                "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current"
                " PyTorch installation.\n"
                "The current PyTorch install supports CUDA capabilities sm_50 sm_90.\n"
            ),
            "gpu_arch",
            "fail",
            "sm_120",
        ),
    ],
)
def test_a_paste_is_judged(findings_of, text, name, status, words):
    finding = findings_of(text)["paste.txt", name]
    assert (finding.status, words in finding.found) == (status, True), finding


@pytest.mark.parametrize(
    "distribution, command",
    [
        ("ubuntu", "sudo ubuntu-drivers install"),
        ("debian", "sudo apt-get install nvidia-driver"),
        ("rocky", "sudo dnf install nvidia-open"),
        ("sles", "sudo zypper install nvidia-open-driver-G06"),
        ("gentoo", "by distribution: "),
    ],
)
def test_the_repair_is_in_the_distributions_words(check, distribution, command):
    system = System(
        distribution=Distribution(id=distribution),
        nvidia_pci_devices=2,
        secure_boot=True,
        nouveau_loaded=True,
    )
    missing = Driver(version=Unknown("the module is not loaded"), kernel_module=Unknown("not loaded"))
    finding = check("driver", NodeFacts(node="n", is_live=True, system=system, driver=missing))
    assert finding.status == "fail"
    assert command in finding.fix
    assert "mokutil" in finding.fix
    assert "blacklist nouveau" in finding.fix


def test_old_cards_get_the_closed_kernel_modules(check):
    system = System(distribution=Distribution(id="rocky"))
    old = NodeFacts(
        node="n",
        system=system,
        driver=Driver(version="390.30"),
        gpus=(Gpu(index=0, name="Tesla P100-PCIE-16GB"),),
        torch=Torch(version="1.9.0", cuda="10.2"),
    )
    assert "cuda-drivers" in check("driver_cuda", old).fix


def test_a_laptop_without_a_gpu_needs_no_driver(check):
    laptop = NodeFacts(
        node="n",
        is_live=True,
        system=System(nvidia_pci_devices=0),
        driver=Driver(version=Unknown("no library")),
        gpus=(),
        torch=Torch(version="2.9.1+cpu", cuda="", import_error="", cuda_available=False),
        host=Host(),
    )
    assert {check(name, laptop).status for name in ("driver", "torch_build")} == {"pass"}
    assert check("cuda_starts", laptop).status == "not_checked"
