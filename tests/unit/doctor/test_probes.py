"""The live node by captured /proc, /sys and /etc."""

from __future__ import annotations

import struct

import pytest

from drivetrain.doctor.facts import Gid
from drivetrain.doctor.probe_host import read_host, read_kernel_driver, read_system
from drivetrain.doctor.probe_packages import read_libraries, read_python
from drivetrain.doctor.probe_rdma import read_rdma
from drivetrain.spec.unknown import Unknown


@pytest.fixture
def tree(tmp_path):
    def tree(files):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
        return tmp_path

    return tree


def test_ports_are_read_from_sysfs(tree):
    port = "sys/class/infiniband/mlx5_0/ports/1"
    root = tree(
        {
            f"{port}/state": "4: ACTIVE\n",
            f"{port}/phys_state": "5: LinkUp\n",
            f"{port}/rate": "100 Gb/sec (4X EDR)\n",
            f"{port}/link_layer": "Ethernet\n",
            f"{port}/sm_lid": "0x0\n",
            f"{port}/gids/0": "fe80:0000:0000:0000:0000:0000:0000:0001\n",
            f"{port}/gids/1": "0000:0000:0000:0000:0000:0000:0000:0000\n",
            f"{port}/gids/2": "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
            f"{port}/gid_attrs/types/2": "RoCE v2\n",
            f"{port}/gid_attrs/ndevs/0": "eth2\n",
            "sys/class/infiniband/mlx5_0/hca_type": "MT4119\n",
        }
    )
    (found,) = read_rdma(root)
    assert (found.state, found.physical, found.rate_gbps, found.lanes) == ("active", "linkup", 100, 4)
    assert (found.card, found.interface, found.sm_lid) == ("MT4119", "eth2", 0)
    assert found.gids[-1] == Gid(index=2, gid="0000:0000:0000:0000:0000:ffff:0a00:0001", kind="RoCE v2")
    assert len(found.gids) == 2
    assert isinstance(found.firmware, Unknown)
    assert read_rdma(root / "absent") == ()


def test_a_host_with_gpus_but_without_a_driver(tree):
    root = tree(
        {
            "etc/os-release": 'ID="rocky"\nID_LIKE="rhel"\nVERSION_ID="9.3"\nPRETTY_NAME="Rocky Linux 9.3"\n',
            "sys/module/nouveau/x": "",
            "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
            "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
            "sys/bus/pci/devices/0000:02:00.0/vendor": "0x10de\n",
            "sys/bus/pci/devices/0000:02:00.0/class": "0x068000\n",
            "sys/firmware/efi/efivars/SecureBoot-8be4": b"\x06\x00\x00\x00\x01",
            ".dockerenv": "",
        }
    )
    system = read_system(root)
    assert (system.distribution.id, system.distribution.tool, system.name) == (
        "rocky",
        "dnf",
        "Rocky Linux 9.3",
    )
    assert (system.nvidia_pci_devices, system.nouveau_loaded, system.secure_boot) == (1, True, True)
    assert system.container == "Docker"
    assert isinstance(read_kernel_driver(root).kernel_module, Unknown)
    assert read_host({}, root).has_nvswitch is True


def test_the_kernel_module_tells_its_version_and_kind(tree):
    text = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build "
        " (x)\nGCC version: gcc 13.2.0\n"
    )
    driver = read_kernel_driver(tree({"proc/driver/nvidia/version": text}))
    assert (driver.kernel_module, driver.has_open_modules) == ("580.95.05", True)


def _config(control: int) -> bytes:
    header = struct.pack("<I", 0x000D | 1 << 16)  # the ACS capability, last of the chain
    return bytes(256) + header + struct.pack("<HH", 0x5F, control) + bytes(64)


@pytest.mark.parametrize(
    "config, found", [(_config(0b11101), 1), (_config(0b00001), 0), (_config(0), 0), (bytes(64), None)]
)
def test_acs_is_read_from_configuration_space(tree, config, found):
    device = "sys/bus/pci/devices/0000:00:01.0"
    host = read_host({}, tree({f"{device}/class": "0x060400\n", f"{device}/config": config}))
    assert (
        host.acs_enabled_bridges == found
        if found is not None
        else isinstance(host.acs_enabled_bridges, Unknown)
    )


@pytest.mark.parametrize(
    "kinds, found",
    [
        (("identity", "identity"), "passthrough"),
        (("DMA", "identity"), "translating"),
        (("DMA-FQ",), "translating"),
    ],
)
def test_the_iommus_mode(tree, kinds, found):
    root = tree({f"sys/kernel/iommu_groups/{number}/type": kind for number, kind in enumerate(kinds)})
    assert read_host({}, root).iommu == found


def test_variables_are_kept_but_no_secrets():
    host = read_host(
        {"NCCL_DEBUG": "INFO", "NCCL_API_KEY": "x", "HOME": "/home/me", "CUDA_VISIBLE_DEVICES": "0,1"}
    )
    assert host.nccl_variables == (("NCCL_DEBUG", "INFO"),)
    assert host.cuda_visible_devices == "0,1"
    assert host.num_cpus_usable >= 1
    assert isinstance(host.interfaces, tuple)


def test_libraries_in_the_search_path_shadow_the_wheels(tmp_path):
    (tmp_path / "libnccl.so.2").touch()
    libraries = read_libraries({"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}"})
    assert libraries.shadowing == (f"{tmp_path}/libnccl.so.2",)
    assert dict(libraries.packages)["torch"]
    assert len(read_python().torch_places) == 1
