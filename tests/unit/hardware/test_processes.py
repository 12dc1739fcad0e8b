"""Whose a process is and for which job: this machine's /proc, and captured ones."""

from __future__ import annotations

import os
import subprocess

import pytest

from drivetrain.hardware.processes import plain, process_facts, user_name
from drivetrain.spec.unknown import Unknown

POD = "0::/kubepods.slice/kubepods-burstable-pod1b2c3d4e_1111_2222_3333_444455556666.slice/cri-containerd-"


def test_an_own_process_is_named(tmp_path):
    with subprocess.Popen(["sleep", "60"], env={"SLURM_JOB_ID": "41"}) as process:
        facts = process_facts(process.pid)
        process.kill()
    assert (facts.user, facts.job) == (user_name(os.getuid()), "Slurm job 41")
    assert facts.command == "sleep 60"


def test_of_a_process_that_is_gone_all_is_unknown():
    facts = process_facts(4194305)
    assert all(isinstance(value, Unknown) for value in (facts.user, facts.command, facts.job))


@pytest.mark.parametrize(
    "cgroup, environ, job",
    [
        ("0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0\n", None, "Slurm job 77"),
        ("4:memory:/slurm/uid_1000/job_78/step_batch\n", b"A=1\0", "Slurm job 78"),
        (POD + "ab" * 32 + ".scope\n", None, "pod 1b2c3d4e_1111_2222_3333_444455556666"),
        (f"0::/system.slice/docker-{'0123456789ab' + 'c' * 52}.scope\n", None, "container 0123456789ab"),
        ("0::/user.slice\n", b"A=1\0B\0", None),
        ("0::/\n", b"SLURM_JOB_ID=9\0DRIVETRAIN_RUN_DIR=/runs/a\0", "run /runs/a"),
        ("0::/user.slice\n", None, Unknown),
    ],
)
def test_the_job_is_read_from_the_environment_or_else_the_cgroup(tree, cgroup, environ, job):
    root = tree({"/7/cgroup": cgroup, "/7/cmdline": "python\0train.py\0", "/7/comm": "python\n"})
    if environ is not None:
        (root / "7/environ").write_bytes(environ)
    facts = process_facts(7, root)
    assert facts.command == "python train.py"
    assert isinstance(facts.job, Unknown) if job is Unknown else facts.job == job


def test_a_process_without_a_command_line_has_its_name(tree):
    assert process_facts(7, tree({"/7/cmdline": "", "/7/comm": "python\n"})).command == "python"


def test_control_characters_do_not_reach_the_terminal():
    assert plain("a\x1b[2J\nb\tc\u202e") == "a?[2J b c?"
