"""NVIDIA's tables of drivers and CUDA, torch's of kernels, and names of cards."""

from __future__ import annotations

import pytest

from drivetrain.hardware.cuda_versions import (
    newest_cuda_of_driver,
    oldest_driver_for_cuda,
    parse_version,
    show_version,
)
from drivetrain.hardware.distribution import distribution_named
from drivetrain.hardware.gpu_models import find_gpu_model
from drivetrain.hardware.rdma_cards import find_rdma_card
from drivetrain.hardware.torch_wheels import runs_on, wheel_archs
from drivetrain.hardware.xids import explain_xid


@pytest.mark.parametrize(
    "driver, cuda",
    [
        ("352.39", (7, 5)),
        ("384.145", (9, 0)),
        ("390.30", (9, 1)),
        ("470.82.01", (11, 4)),
        ("525.116.04", (12, 0)),
        ("535.104.05", (12, 2)),
        ("580.95.05", (13, 0)),
        ("999.1", (13, 3)),
        ("275.0", None),
    ],
)
def test_a_driver_brings_the_newest_cuda_of_its_branch(driver, cuda):
    assert newest_cuda_of_driver(parse_version(driver)) == cuda


def test_minor_version_compatibility_lowers_the_floor():
    assert show_version(oldest_driver_for_cuda((12, 9))) == "525.60.13"
    assert show_version(oldest_driver_for_cuda((11, 8))) == "450.80.02"
    assert oldest_driver_for_cuda((10, 2)) == (440, 33)
    assert oldest_driver_for_cuda((99, 0)) is None


@pytest.mark.parametrize(
    "text, version", [("2.1.0+cu118", (2, 1, 0)), (" 12.4 ", (12, 4)), ("x", None), ("", None)]
)
def test_versions_are_read_up_to_what_is_no_number(text, version):
    assert parse_version(text) == version


@pytest.mark.parametrize(
    "name, capability",
    [
        ("Tesla V100-PCIE...", 70),
        ("Tesla V100S-PCI...", 70),
        ("NVIDIA A100 80GB PCIe", 80),
        ("NVIDIA A100-SXM4-80GB", 80),
        ("A100-SXM4-40GB", 80),
        ("NVIDIA A100-PCIE-40GB", 80),
        ("NVIDIA H100 80GB HBM3", 90),
        ("NVIDIA H100 PCIe", 90),
        ("NVIDIA H200", 90),
        ("NVIDIA B200", 100),
        ("NVIDIA L40S", 89),
        ("NVIDIA L4", 89),
        ("NVIDIA A10G", 86),
        ("Tesla T4", 75),
        ("Quadro RTX 8000", 75),
        ("NVIDIA GeForce RTX 3090", 86),
        ("NVIDIA GeForce RTX 5090", 120),
        ("GeForce GTX TITAN", 35),
        ("GeForce GTX TITAN X", 52),
        ("GeForce GTX 1080 Ti", 61),
        ("Tesla K80", 37),
    ],
)
def test_a_card_is_known_by_its_name(name, capability):
    assert find_gpu_model(name).capability == capability


def test_a_name_that_was_cut_too_short_is_not_guessed():
    assert find_gpu_model("NVIDIA GeForce ...") is None
    assert find_gpu_model("Tesla ...") is None


def test_kernels_run_on_the_same_major_at_or_above_their_minor():
    assert runs_on((80,), 86)
    assert not runs_on((86,), 80)
    assert not runs_on((90,), 100)
    assert wheel_archs((2, 9, 1), (13, 0)) == (75, 80, 86, 90, 100, 120)
    assert wheel_archs((2, 0, 1), (11, 7)) == (37, 50, 60, 70, 75, 80, 86)
    assert wheel_archs((2, 0), (12, 1)) is None


def test_other_tables_answer_for_what_they_do_not_know():
    assert find_rdma_card("MT4123") == ("ConnectX-6", 200)
    assert find_rdma_card("MT1") is None
    assert find_rdma_card("MTx") is None
    assert explain_xid(79).is_hardware
    assert not explain_xid(31).is_hardware
    assert "not in this table" in explain_xid(9999).meaning
    assert distribution_named("Red Hat Enterprise Linux 9.2 (Plow) (x86_64)").tool == "dnf"
    assert distribution_named("Ubuntu 22.04.4 LTS (x86_64)").version == "22.04.4"
    assert distribution_named("Microsoft Windows 10 Home") is None
