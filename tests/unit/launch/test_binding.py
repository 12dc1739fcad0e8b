"""Which GPU, CPUs, memory and NIC each rank gets, and what of the user's own is kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from drivetrain.hardware.gpus import visible_gpus
from drivetrain.hardware.topology.graph import Nic
from drivetrain.hardware.topology.links import read_link
from drivetrain.hardware.topology.nvml import read_nvml
from drivetrain.launch.binding import Binding, Machine, bind, plan_binding
from drivetrain.launch.render import render_command
from drivetrain.spec.job import LaunchRequest, Pinning
from wiring import FakeNvml, uuid

LINKS = {(0, 2): 4, (1, 3): 4}
"""Four GPUs; those linked by NVLink are not neighbours. 0 and 2 sit on node 0, 1 and 3 on node 1."""


def fake(**options):
    return FakeNvml(4, links=LINKS, numa=lambda gpu: gpu % 2, **options)


def machine(environ, **options):
    found = Machine(
        visible=visible_gpus(environ, nvml=fake()),
        topology=read_nvml(fake(), Path("/nowhere")),
        cpus=frozenset(range(8)),
        nics={},
        memory_nodes=frozenset({0, 1}),
    )
    return dataclasses.replace(found, **options)


def plan(num_ranks=4, environ=None, *, num_nodes=1, one_gpu_each=True, **options):
    environ = environ or {}
    return plan_binding(
        machine(environ, **options), num_ranks, environ, num_nodes=num_nodes, one_gpu_each=one_gpu_each
    )


def gpus(binding):
    listed = binding.environment["CUDA_VISIBLE_DEVICES"].split(",")
    return [next(gpu for gpu in range(4) if uuid(gpu) == entry) for entry in listed]


def test_neighbouring_ranks_are_linked_and_run_where_their_gpu_is():
    binding = plan()
    assert gpus(binding) == [0, 2, 1, 3]
    assert binding.pinnings == (
        Pinning(cpus=(0, 1, 2, 3), numa_node=0),
        Pinning(cpus=(0, 1, 2, 3), numa_node=0),
        Pinning(cpus=(4, 5, 6, 7), numa_node=1),
        Pinning(cpus=(4, 5, 6, 7), numa_node=1),
    )
    assert binding.lines[0] == "CUDA_VISIBLE_DEVICES is reordered so that neighbouring ranks are best linked"
    assert binding.lines[2] == "local rank 1: GPU2 (GPU-00000002), CPUs 0-3, memory of node 0 first"


@pytest.mark.parametrize(
    ("listed", "num_ranks", "order"),
    [
        ("3,1", 2, None),  # linked as they stand: the user's list is left as it is
        ("1,0,3,2", 4, [0, 2, 1, 3]),
        ("0,1,3", 2, [1, 3, 0]),  # the best two, then the rest for scripts that use more
        (f"{uuid(2)[:12]},0", 2, None),
    ],
)
def test_ranks_stay_within_the_users_list(listed, num_ranks, order):
    binding = plan(num_ranks, {"CUDA_VISIBLE_DEVICES": listed})
    if order is None:
        assert binding.environment == {}
    else:
        assert gpus(binding) == order


def test_only_cpus_that_this_process_may_use_are_given():
    assert plan(cpus=frozenset({2, 3, 4})).pinnings[0].cpus == (2, 3)
    elsewhere = plan(cpus=frozenset({2, 3}))  # all of them on node 0: nothing to choose, but for memory
    assert elsewhere.pinnings == (Pinning(numa_node=0), Pinning(numa_node=0), Pinning(), Pinning())
    assert "CPUs" not in " ".join(elsewhere.lines)


def test_a_node_that_the_kernel_refuses_is_not_claimed():
    binding = plan(memory_nodes=frozenset({1}))
    assert [pinning.numa_node for pinning in binding.pinnings] == [None, None, 1, 1]
    assert "memory" not in binding.lines[1]


def test_a_rank_that_may_use_several_gpus_keeps_all_cpus():
    binding = plan(2, one_gpu_each=False)
    assert gpus(binding) == [0, 2, 1, 3]
    assert binding.pinnings == ()
    assert any("a rank may use several of the 4 visible GPUs" in line for line in binding.lines)


def test_more_ranks_than_gpus_are_left_alone():
    assert plan(5) == Binding(lines=("ranks are not bound to GPUs: 5 ranks share 4 visible GPUs",))


def wired(nics, active=None):
    """`nics`: name → the GPU that it is next to (None: to none). All others are SYS."""
    topology = read_nvml(fake(), Path("/nowhere"))
    links = {
        (gpu, name): read_link("PIX" if near == gpu else "SYS")
        for name, near in nics.items()
        for gpu in range(4)
    }
    topology = dataclasses.replace(
        topology, nics=tuple(Nic(label=name, name=name) for name in nics), nic_links=links
    )
    return {"topology": topology, "nics": active or dict.fromkeys(nics, "InfiniBand")}


RAILS = {"mlx5_0": 0, "mlx5_1": 1, "mlx5_2": 2, "mlx5_3": 3, "mlx5_9": None}


def test_on_several_machines_nics_that_are_nearest_to_none_are_left_out():
    binding = plan(num_nodes=2, **wired(RAILS))
    assert binding.environment["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1,mlx5_2,mlx5_3"
    assert binding.lines[2].endswith("nearest NIC mlx5_2")
    assert any(line.startswith("NCCL_IB_HCA==mlx5_0") and "4 of 5" in line for line in binding.lines)


@pytest.mark.parametrize(
    ("options", "environ"),
    [
        ({"num_nodes": 1, **wired(RAILS)}, {}),
        ({"num_nodes": 2, **wired(RAILS)}, {"NCCL_IB_HCA": "mlx5_9"}),
        ({"num_nodes": 2, **wired({"mlx5_0": 0, "mlx5_1": 1, "mlx5_2": 2, "mlx5_3": 3})}, {}),
        ({"num_nodes": 2, **wired(RAILS, {**dict.fromkeys(RAILS, "InfiniBand"), "mlx5_9": "Ethernet"})}, {}),
        ({"num_nodes": 2, **wired(RAILS, {"mlx5_9": "InfiniBand"})}, {}),
    ],
)
def test_the_nics_are_left_to_nccl_otherwise(options, environ):
    assert "NCCL_IB_HCA" not in plan(environ=environ, **options).environment


def test_without_gpus_nothing_is_bound_or_said():
    none = fake(failing={("nvmlInit", None): 12})
    assert bind(2, {}, num_nodes=1, one_gpu_each=True, nvml=none) == Binding()


def test_what_stands_in_the_way_is_said():
    failing = fake(failing={("nvmlDeviceGetCount", None): 999})
    binding = bind(2, {}, num_nodes=1, one_gpu_each=True, nvml=failing)
    assert binding.lines == (
        "ranks are not bound to GPUs: NVML failed while listing GPUs: NVML: code 999; 0 device files",
    )


def test_this_machine_is_asked(tmp_path):
    binding = bind(4, {}, num_nodes=1, one_gpu_each=True, nvml=fake(), root=tmp_path)
    assert gpus(binding) == [0, 2, 1, 3]
    assert binding.lines[-1] == "(--no-bind: none of this)"


def test_a_dry_run_shows_the_cpus(tmp_path):
    pinnings = (Pinning(cpus=(0, 2), numa_node=0), Pinning())
    request = LaunchRequest(command=("true",), folder=tmp_path, nproc_per_node=2, pinnings=pinnings)
    first, second = render_command(request).splitlines()[-3:-1]
    assert first.startswith("taskset -c 0,2 env ")
    assert second.startswith("env ")
