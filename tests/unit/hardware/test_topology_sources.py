"""Where this machine's wiring is read: NVML, else nvidia-smi, else sysfs; and what is said of what fails."""

from __future__ import annotations

import pytest

from drivetrain.hardware.topology.graph import read_ranges, write_ranges
from drivetrain.hardware.topology.links import PcieSlot
from drivetrain.hardware.topology.nvml import NvmlUnavailableError, read_nvml
from drivetrain.hardware.topology.pci import active_nics, bus_id_for_sysfs
from drivetrain.hardware.topology.read import read_file, read_machine
from drivetrain.hardware.topology.sysfs import read_sysfs
from drivetrain.spec.errors import InputError
from drivetrain.spec.unknown import Unknown
from wiring import EIGHT, FakeNvml, bus_id, heading, rows, uuid


def codes(topology):
    return {pair: str(link) for pair, link in topology.links.items()}


@pytest.fixture
def pci(tmp_path):
    """Adds a PCI device to a sysfs tree: `pci("pci0000:00/0000:00:01.0/0000:01:00.0", numa=0)`."""

    def pci(way, *, numa=-1, nic=None, gpu=True, cpus="0-3"):
        folder = tmp_path / "sys/devices" / way
        folder.mkdir(parents=True, exist_ok=True)
        name = folder.name
        facts = {
            "numa_node": numa,
            "local_cpulist": cpus,
            "vendor": "0x10de" if gpu and nic is None else "0x15b3",
            "class": "0x030200" if gpu and nic is None else "0x020700",
            "max_link_speed": "16.0 GT/s PCIe",
            "max_link_width": 16,
        }
        for fact, value in facts.items():
            (folder / fact).write_text(f"{value}\n")
        listed = tmp_path / "sys/bus/pci/devices"
        listed.mkdir(parents=True, exist_ok=True)
        (listed / name).symlink_to(folder)
        if nic is not None:
            ports = tmp_path / "sys/class/infiniband" / nic / "ports/1"
            ports.mkdir(parents=True)
            (ports.parents[1] / "device").symlink_to(folder)
            (ports / "state").write_text("4: ACTIVE\n" if nic != "mlx5_9" else "1: DOWN\n")
            (ports / "link_layer").write_text("InfiniBand\n")
        return tmp_path

    return pci


def test_nvlinks_to_peers_and_to_switches_are_counted():
    direct = read_nvml(FakeNvml(3, links={(0, 1): 4, (1, 2): 2}, level=lambda a, b: 40 if b == 2 else 50))
    assert codes(direct) == {(0, 1): "NV4", (0, 2): "NODE", (1, 2): "NV2"}
    # Through a switch each GPU reaches all others with all its links, but not with more than the other has.
    switched = read_nvml(FakeNvml(3, links={(0, "switch"): 6, (1, "switch"): 6, (2, "switch"): 5}))
    assert codes(switched) == {(0, 1): "NV6", (0, 2): "NV5", (1, 2): "NV5"}


def test_the_switch_is_known_by_its_bus_id_where_the_driver_names_no_kind():
    fake = FakeNvml(2, links={(0, "switch"): 6, (1, "switch"): 6})
    fake.failing = {("nvmlDeviceGetNvLinkRemoteDeviceType", None): 13}
    assert codes(read_nvml(fake)) == {(0, 1): "NV6"}


@pytest.mark.parametrize(
    ("level", "code"), [(0, "PSB"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")]
)
def test_nvmls_levels_are_the_matrix_words(level, code):
    assert codes(read_nvml(FakeNvml(2, level=lambda *_: level))) == {(0, 1): code}


def test_what_nvml_says_of_each_gpu():
    topology = read_nvml(FakeNvml(4, refused=[(0, 1)]))
    gpu = topology.gpus[3]
    assert (gpu.uuid, gpu.name, gpu.bus_id) == (uuid(3), "NVIDIA A100-SXM4-80GB", "0000:31:00.0")
    assert (gpu.cpus, gpu.numa, gpu.slot) == (frozenset(range(4, 8)), {1}, PcieSlot(generation=4, width=16))
    assert topology.refused_peers == {(0, 1): "NS"}
    assert topology.unknown == ()


def test_a_gpu_that_fails_mid_call_makes_only_its_own_facts_unknown():
    lost = 15  # NVML_ERROR_GPU_IS_LOST
    calls = ("NvLinkState", "UUID", "CpuAffinity", "MemoryAffinity", "MaxPcieLinkWidth")
    fake = FakeNvml(3, links={(0, 1): 4}, failing={(f"nvmlDeviceGet{call}", 2): lost for call in calls})
    topology = read_nvml(fake)
    assert str(topology.link(0, 1)) == "NV4"
    for fact in (
        topology.link(0, 2),
        *(getattr(topology.gpus[2], f) for f in ("uuid", "cpus", "numa", "slot")),
    ):
        assert isinstance(fact, Unknown)
        assert "code 15" in fact.reason
    assert sum("code 15" in line for line in topology.unknown) == 2
    assert fake.num_open == 0


def test_a_gpu_that_cannot_be_had_is_left_out_and_said():
    topology = read_nvml(FakeNvml(3, failing={("nvmlDeviceGetHandleByIndex", None): 15}))
    assert topology.gpus == ()
    assert topology.unknown == ("GPU0: code 15", "GPU1: code 15", "GPU2: code 15")


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount"])
def test_without_nvml_there_is_a_reason(call):
    with pytest.raises(NvmlUnavailableError, match="code 12"):
        read_nvml(FakeNvml(failing={(call, None): 12}))


def test_nvml_finds_the_nics_in_sysfs(pci):
    pci(f"pci0000:00/0000:00:01.0/{bus_id_for_sysfs(bus_id(0))}", numa=0)
    root = pci("pci0000:00/0000:00:01.0/0000:02:00.0", numa=0, nic="mlx5_0")
    topology = read_nvml(FakeNvml(1), root)
    assert [nic.name for nic in topology.nearest_nics(0)[0]] == ["mlx5_0"]
    assert str(topology.nearest_nics(0)[1]) == "PIX"


def test_bus_ids_are_spelled_as_sysfs_does():
    assert bus_id_for_sysfs("00000000:1B:00.0") == "0000:1b:00.0"
    assert bus_id_for_sysfs("00010000:1B:00.0") == "10000:1b:00.0"
    assert bus_id_for_sysfs("0009:01:00.0") == "0009:01:00.0"


def test_sysfs_gives_the_pcie_paths_and_says_that_nvlink_is_not_in_it(pci):
    port = "pci0000:10/0000:10:01.0/0000:11:00.0"  # a switch's upstream port; its downstream ports below
    pci(f"{port}/0000:12:00.0/0000:13:00.0", numa=0)
    pci(f"{port}/0000:12:01.0/0000:14:00.0", numa=0)
    pci(f"{port}/0000:12:02.0/0000:15:00.0/0000:16:00.0/0000:17:00.0", numa=0)  # a switch below the switch
    pci("pci0000:10/0000:10:02.0/0000:18:00.0", numa=0)
    pci("pci0000:20/0000:20:01.0/0000:21:00.0", numa=0)
    pci("pci0000:30/0000:30:01.0/0000:31:00.0", numa=1, cpus="4-7")
    root = pci(f"{port}/0000:12:03.0/0000:19:00.0", nic="mlx5_0", numa=0)
    topology = read_sysfs(root)
    assert {b: str(topology.link(0, b)) for b in range(1, 6)} == {
        1: "PIX", 2: "PXB", 3: "PHB", 4: "NODE", 5: "SYS",
    }  # fmt: skip
    assert topology.gpus[5].cpus == frozenset(range(4, 8))
    assert topology.gpus[0].slot == PcieSlot(generation=4, width=16)
    assert [nic.name for nic in topology.nearest_nics(1)[0]] == ["mlx5_0"]
    assert topology.unknown[-1].startswith("NVLink: sysfs does not show it")


def test_host_bridges_without_a_numa_node_leave_the_link_unknown(pci):
    pci("pci0000:10/0000:10:01.0/0000:11:00.0")
    root = pci("pci0000:20/0000:20:01.0/0000:21:00.0")
    topology = read_sysfs(root)
    assert isinstance(topology.link(0, 1), Unknown)
    assert isinstance(topology.gpus[0].numa, Unknown)


def test_the_driver_names_gpus_for_sysfs(pci, tree):
    root = pci("pci0000:10/0000:10:01.0/0000:11:00.0")
    facts = f"Model: \t\t NVIDIA L4\nIRQ:   \t\t 71\nGPU UUID: \t {uuid(0)}\nBus Type: \t PCIe\n"
    tree({"proc/driver/nvidia/gpus/0000:11:00.0/information": facts})
    assert (read_sysfs(root).gpus[0].name, read_sysfs(root).gpus[0].uuid) == ("NVIDIA L4", uuid(0))


def test_only_nics_with_a_port_that_is_up_are_active(pci):
    pci("pci0000:10/0000:10:01.0/0000:11:00.0", nic="mlx5_0")
    root = pci("pci0000:10/0000:10:02.0/0000:12:00.0", nic="mlx5_9")
    assert active_nics(root / "sys") == {"mlx5_0": "InfiniBand"}


@pytest.fixture
def smi(tmp_path):
    """A stand-in for nvidia-smi: prints `text` and ends with `code`, for `topo -m` and nothing else."""

    def smi(text, code=0):
        path = tmp_path / "nvidia-smi"
        (tmp_path / "printed").write_text(text)
        path.write_text(
            f'#!/bin/sh\n[ "$*" = "topo -m" ] || exit 64\ncat "{tmp_path / "printed"}"\nexit {code}\n'
        )
        path.chmod(0o755)
        return str(path)

    return smi


DEAD = FakeNvml(failing={("nvmlInit", None): 12})


def test_nvidia_smi_answers_where_nvml_does_not(smi, tmp_path):
    topology = read_machine(nvml=DEAD, smi=smi(EIGHT), root=tmp_path)
    assert codes(topology)[0, 1] == "NV12"
    assert topology.unknown == ("NVML did not start: code 12",)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("NVIDIA-SMI has failed\n", 9, "ended with exit code 9: NVIDIA-SMI has failed"),
        ("No devices were found\n", 0, "printed no matrix"),
    ],
)
def test_sysfs_answers_where_neither_does(smi, pci, text, code, said):
    root = pci("pci0000:10/0000:10:01.0/0000:11:00.0")
    topology = read_machine(nvml=DEAD, smi=smi(text, code), root=root)
    assert (topology.source, len(topology.gpus)) == ("sysfs", 1)
    assert said in topology.unknown[-1]


def test_a_machine_without_gpus_has_none_and_says_what_was_tried(tmp_path):
    topology = read_machine(nvml=DEAD, smi=str(tmp_path / "none"), root=tmp_path)
    assert topology.gpus == ()
    assert topology.unknown == ("NVML did not start: code 12", f"{tmp_path / 'none'} is not installed")


def test_a_file_without_a_matrix_is_a_mistake(tmp_path):
    (tmp_path / "notes").write_text("nothing of the kind\n")
    for name, found in (("notes", "holds no matrix"), ("gone", "cannot be read")):
        with pytest.raises(InputError, match=found):
            read_file(tmp_path / name)
    (tmp_path / "good").write_text("\n".join([heading(2), *rows(2, lambda *_: "PIX")]))
    assert codes(read_file(tmp_path / "good")[0]) == {(0, 1): "PIX"}


@pytest.mark.parametrize("text", ["0-19,40-59", "7", "0,2,4-6"])
def test_ranges_are_written_as_they_were_read(text):
    assert write_ranges(read_ranges(text)) == text


@pytest.mark.parametrize("text", ["", "5-3", "0-", "-4", "1,1", "4-9,7", "x", "0x3", "\u0663"])
def test_what_is_no_range_is_none(text):
    assert read_ranges(text) is None
