"""Libraries, packages, frameworks, host limits and trials."""

from __future__ import annotations

import pytest
from doctor_captures import COLLECT_ENV, COLLECT_ENV_OLD

from drivetrain.doctor.facts import (
    Framework,
    Host,
    Libraries,
    LoadedLibrary,
    NodeFacts,
    Python,
    RdmaPort,
    Storage,
    System,
    Torch,
    Trial,
)
from drivetrain.spec.unknown import Unknown

GIB = 1 << 30
TORCH = Torch(version="2.9.1", cuda="12.8", nccl="2.27.5", cudnn="9.10.2")
PORT = (RdmaPort(device="mlx5_0", port=1),)


def node(**values):
    return NodeFacts(node="n", **values)


@pytest.mark.parametrize(
    "text, name, status, words",
    [
        (COLLECT_ENV, "nvcc", "fail", "major version"),
        (COLLECT_ENV, "cudnn", "warn", "cuDNN 8.9.7 is installed in the system, beside the wheel's own"),
        (COLLECT_ENV, "nccl", "pass", "2.18.1"),
        (COLLECT_ENV, "torchvision_matches", "pass", "0.16.2"),
        (COLLECT_ENV, "numpy_abi", "pass", "1.26.2"),
        (COLLECT_ENV, "conda_and_pip", "pass", "no conda"),
        (COLLECT_ENV_OLD, "nccl", "fail", "two NCCL packages"),
        (COLLECT_ENV_OLD, "one_torch", "warn", "both conda and pip"),
        (COLLECT_ENV_OLD, "conda_and_pip", "warn", "torch (pip 1.9.0+cu102, conda 1.8.1)"),
        (COLLECT_ENV_OLD, "numpy_abi", "fail", "built for numpy 1"),
        (COLLECT_ENV_OLD, "torchvision_matches", "fail", "torchvision 0.15.2"),
        (COLLECT_ENV_OLD, "nvcc", "not_checked", "nvcc"),
    ],
)
def test_a_paste_is_judged(findings_of, text, name, status, words):
    finding = findings_of(text)["paste.txt", name]
    assert (finding.status, words in finding.found) == (status, True), finding


@pytest.mark.parametrize(
    "name, facts, status",
    [
        ("nvcc", node(torch=TORCH, libraries=Libraries(nvcc="12.8.93")), "pass"),
        ("nvcc", node(torch=TORCH, libraries=Libraries(nvcc="12.4.1")), "warn"),
        (
            "cudnn",
            node(torch=TORCH, libraries=Libraries(pinned=(("nvidia-cudnn-cu12", "9.10.2.21"),))),
            "pass",
        ),
        (
            "cudnn",
            node(torch=TORCH, libraries=Libraries(pinned=(("nvidia-cudnn-cu12", "9.1.0.70"),))),
            "fail",
        ),
        ("nccl", node(torch=TORCH, libraries=Libraries(pinned=(("nvidia-nccl-cu12", "2.27.5"),))), "pass"),
        ("nccl", node(torch=TORCH, libraries=Libraries(pinned=(("nvidia-nccl-cu12", "2.21.5"),))), "fail"),
        (
            "library_path",
            node(libraries=Libraries(library_path="/a", shadowing=("/a/libnccl.so.2",))),
            "warn",
        ),
        ("library_path", node(libraries=Libraries(library_path="", shadowing=())), "pass"),
        ("one_torch", node(python=Python(torch_places=("/a", "/b"))), "fail"),
        ("one_torch", node(python=Python(torch_places=("/a",))), "pass"),
        ("numpy_abi", node(python=Python(numpy="2.0", numpy_works=False)), "fail"),
        ("shm", node(host=Host(shm_total_bytes=64 << 20, shm_free_bytes=64 << 20)), "fail"),
        ("shm", node(host=Host(shm_total_bytes=2 * GIB, shm_free_bytes=2 * GIB)), "warn"),
        ("shm", node(host=Host(shm_total_bytes=64 * GIB, shm_free_bytes=64 * GIB)), "pass"),
        ("memlock", node(host=Host(memlock_bytes=64 << 10), rdma=PORT), "fail"),
        ("memlock", node(host=Host(memlock_bytes=64 << 10), rdma=()), "pass"),
        ("memlock", node(host=Host(memlock_bytes=-1), rdma=PORT), "pass"),
        ("open_files", node(host=Host(max_open_files=1024, max_open_files_hard=4096)), "warn"),
        ("open_files", node(host=Host(max_open_files=-1, max_open_files_hard=-1)), "pass"),
        ("cpus", node(host=Host(num_cpus_usable=2, num_cpus_visible=64, cpu_reason="cgroup")), "warn"),
        ("cpus", node(host=Host(num_cpus_usable=64, num_cpus_visible=64)), "pass"),
        ("memory", node(host=Host(memory_usable_bytes=GIB, memory_visible_bytes=64 * GIB)), "warn"),
        ("numa", node(host=Host(num_numa_nodes=2, numa_balancing=True)), "warn"),
        ("numa", node(host=Host(num_numa_nodes=2, numa_balancing=False)), "pass"),
        ("hostname", node(host=Host(addresses_of_own_name=())), "warn"),
        ("hostname", node(host=Host(addresses_of_own_name=("2001:db8::1", "10.0.0.1"))), "warn"),
        ("hostname", node(host=Host(addresses_of_own_name=("10.0.0.1", "2001:db8::1"))), "pass"),
        ("clock", node(host=Host(clock_synchronised=False)), "warn"),
        ("clock", node(host=Host(clock_synchronised=True, clock_error_s=3.0)), "warn"),
        ("clock", node(host=Host(clock_synchronised=True, clock_error_s=0.01)), "pass"),
        ("clock_skew", node(), "not_checked"),
        ("firewall", node(host=Host(firewall="firewalld")), "warn"),
        ("firewall", node(host=Host(firewall="")), "pass"),
        (
            "interfaces",
            node(
                host=Host(
                    interfaces=(("eth0", "10.0.0.1", True),), nccl_variables=(("NCCL_SOCKET_IFNAME", "eth7"),)
                )
            ),
            "fail",
        ),
        ("interfaces", node(host=Host(interfaces=(("eth0", "10.0.0.1", True),))), "pass"),
        (
            "container",
            node(system=System(container="Docker", nvidia_pci_devices=8), host=Host(gpu_device_files=())),
            "fail",
        ),
        ("container", node(system=System(container="")), "pass"),
        ("storage", node(storage=Storage(folder="/d", write_bytes_per_s=2e7, read_bytes_per_s=2e7)), "warn"),
        ("storage", node(storage=Storage(folder="/d", write_bytes_per_s=2e9, free_bytes=1000)), "fail"),
        ("storage", node(storage=Storage(folder="/d", write_bytes_per_s=2e9, read_bytes_per_s=2e9)), "pass"),
    ],
)
def test_each_limit_has_its_line(check, name, facts, status):
    finding = check(name, facts)
    assert finding.status == status, finding
    assert finding.fix or status in ("pass", "not_checked")


def test_nothing_known_passes_nowhere(check):
    from drivetrain.doctor.checks.table import CHECKS

    empty = NodeFacts(node="n")
    assert {check(item.id, empty).status for item in CHECKS} == {"not_checked"}
    assert all(check(item.id, empty).found for item in CHECKS)
    assert len({item.id for item in CHECKS}) == len(CHECKS)


def test_a_library_from_outside_the_environment_is_named(check):
    strange = LoadedLibrary(
        name="libcublas", path="/usr/local/cuda/lib64/libcublas.so.12", is_from_wheel=False
    )
    finding = check("loaded_libraries", node(libraries=Libraries(loaded=(strange,))))
    assert (finding.status, strange.path in finding.found) == ("fail", True)


@pytest.mark.parametrize(
    "outcome, detail, unmet, status",
    [
        ("ok", "", (), "pass"),
        ("ok", "", ("torch>=9 (found 2.9)",), "warn"),
        ("crashed", "signal 11 (SIGSEGV)", (), "fail"),
        ("hung", "", (), "fail"),
        ("error", "ImportError: libcuda.so.1: cannot open shared object file", (), "fail"),
        ("absent", "", (), "not_checked"),
        ("not_tried", "left out by --quick", (), "not_checked"),
    ],
)
def test_how_an_import_ended_is_a_finding(check, outcome, detail, unmet, status):
    found = Framework(name="deepspeed", outcome=outcome, detail=detail, unmet=unmet, seconds=60.0)
    finding = check("import_deepspeed", node(frameworks=(found,)))
    assert (finding.status, detail in finding.found or not detail) == (status, True)


@pytest.mark.parametrize(
    "trial, name, status",
    [
        (Trial(name="matmul", outcome="ok", rate=700.0, device="NVIDIA H100 80GB HBM3"), "matmul", "pass"),
        (Trial(name="matmul", outcome="ok", rate=400.0, device="NVIDIA H100 80GB HBM3"), "matmul", "warn"),
        (Trial(name="matmul", outcome="ok", rate=90.0, device="NVIDIA H100 80GB HBM3"), "matmul", "fail"),
        (Trial(name="matmul", outcome="ok", rate=90.0, device="Some future GPU"), "matmul", "not_checked"),
        (Trial(name="matmul", outcome="ok", rate=0.1, device="cpu"), "matmul", "pass"),
        (Trial(name="matmul", outcome="wrong", detail="wrong on cpu"), "matmul", "fail"),
        (Trial(name="copy", outcome="ok", rate=1e9, device="NVIDIA L4"), "copy", "warn"),
        (Trial(name="copy", outcome="ok", rate=2e10, device="NVIDIA L4"), "copy", "pass"),
        (Trial(name="all_reduce", outcome="hung"), "all_reduce", "fail"),
        (Trial(name="loader", outcome="ok", rate=1.0, detail="x"), "loader_start", "pass"),
        (Trial(name="loader", outcome="ok", rate=60.0, detail="x"), "loader_start", "warn"),
        (Trial(name="loader", outcome="crashed", detail="signal 7 (SIGBUS)"), "loader_start", "fail"),
    ],
)
def test_trials_are_judged_by_the_cards_known_rate(check, trial, name, status):
    assert check(name, node(trials=(trial,))).status == status


def test_trials_that_were_left_out_are_not_checked(check):
    assert check("matmul", node(trials=Unknown("left out by --quick"))).status == "not_checked"
