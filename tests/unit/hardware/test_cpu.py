"""CPU and memory limits, read from captured cgroup trees."""

from __future__ import annotations

import os

import pytest

from drivetrain.hardware.cpu import usable_cpus
from drivetrain.hardware.memory import usable_memory
from drivetrain.spec.unknown import Unknown

GIB = 1 << 30
V2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
# Docker on a cgroup v1 host, without a cgroup namespace: the container's part is mounted at the top.
V1_DOCKER = (
    "33 32 0:28 /docker/4f1 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
    "34 32 0:29 /docker/4f1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
)
# A virtual machine that mounts each v1 controller by itself, and an empty v2 tree beside them.
HYBRID = (
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)


def cpus(root, num_affinity=64):
    return usable_cpus(root, num_affinity=num_affinity)


def test_the_tightest_quota_on_the_way_up_counts_under_v2(tree):
    root = tree(
        {
            "/proc/self/mountinfo": V2,
            "/proc/self/cgroup": "0::/slurm/job7/step0\n",
            "/sys/fs/cgroup/slurm/job7/step0/cpu.max": "max 100000\n",
            "/sys/fs/cgroup/slurm/job7/cpu.max": "600000 100000\n",
            "/sys/fs/cgroup/slurm/cpu.max": "3200000 100000\n",
        }
    )
    assert cpus(root).count == 6
    assert "/sys/fs/cgroup/slurm/job7/cpu.max" in cpus(root).reason
    assert str(root) not in cpus(root).reason


def test_a_container_with_its_own_namespace_reads_the_top_of_its_mount(tree):
    root = tree(
        {
            "/proc/self/mountinfo": V2,
            "/proc/self/cgroup": "0::/\n",
            "/sys/fs/cgroup/cpu.max": "150000 100000\n",
            "/sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
            "/proc/meminfo": "MemTotal:       67108864 kB\nMemFree: 1 kB\n",
        }
    )
    assert cpus(root).count == 1  # one and a half: a second busy process would be throttled
    assert usable_memory(root).limit_bytes == 4 * GIB


def test_a_quota_below_one_cpu_is_one(tree):
    files = {
        "/proc/self/mountinfo": V2,
        "/proc/self/cgroup": "0::/\n",
        "/sys/fs/cgroup/cpu.max": "20000 100000\n",
    }
    assert cpus(tree(files)).count == 1


def test_v1_quotas_are_found_below_the_mounts_root(tree):
    root = tree(
        {
            "/proc/self/mountinfo": V1_DOCKER,
            "/proc/self/cgroup": "5:cpu,cpuacct:/docker/4f1\n4:memory:/docker/4f1\n",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
            "/proc/meminfo": "MemTotal:       67108864 kB\n",
        }
    )
    assert cpus(root).count == 4
    assert usable_memory(root).limit_bytes == 8 * GIB


def test_no_quota_leaves_the_affinity_mask(tree):
    root = tree(
        {
            "/proc/self/mountinfo": HYBRID,
            "/proc/self/cgroup": "4:memory:/jobs/89b0\n1:cpu:/\n0::/\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "/sys/fs/cgroup/memory/jobs/89b0/memory.limit_in_bytes": "9223372036854771712\n",
            "/sys/fs/cgroup/unified/cgroup.procs": "",
            "/proc/meminfo": "MemTotal:       24684092 kB\n",
        }
    )
    assert cpus(root, 2).count == 2
    assert "affinity" in cpus(root, 2).reason
    assert usable_memory(root).limit_bytes == 24684092 * 1024
    assert "no tighter" in usable_memory(root).reason


def test_a_narrow_affinity_mask_wins_over_a_wide_quota(tree):
    files = {
        "/proc/self/mountinfo": V2,
        "/proc/self/cgroup": "0::/\n",
        "/sys/fs/cgroup/cpu.max": "800000 100000\n",
    }
    assert cpus(tree(files), 3).count == 3


@pytest.mark.parametrize("path", ["/../../other", "/not/mounted/here"])
def test_a_cgroup_outside_the_mount_falls_back_on_the_mounts_top(tree, path):
    files = {
        "/proc/self/mountinfo": V2,
        "/proc/self/cgroup": f"0::{path}\n",
        "/sys/fs/cgroup/cpu.max": "200000 100000\n",
    }
    assert cpus(tree(files)).count == 2


def test_without_proc_there_is_no_quota_and_memory_is_unknown(tmp_path):
    assert cpus(tmp_path, 5).count == 5
    assert isinstance(usable_memory(tmp_path).limit_bytes, Unknown)


def test_files_that_make_no_sense_set_no_limit(tree):
    files = {
        "/proc/self/mountinfo": V2 + "short\n",
        "/proc/self/cgroup": "0::/\n",
        "/sys/fs/cgroup/cpu.max": "\n",
    }
    assert cpus(tree(files), 7).count == 7


def test_this_machine_answers():
    assert 1 <= usable_cpus().count <= len(os.sched_getaffinity(0))
    assert usable_memory().limit_bytes > 1 << 28
