"""NCCL's start-up lines, with what launchers put before them."""

from __future__ import annotations

from doctor_captures import NCCL_2_2, NCCL_IB, NCCL_TROUBLE

from drivetrain.doctor.facts import NcclDevice
from drivetrain.spec.unknown import Unknown


def test_a_healthy_start_over_infiniband(facts_of):
    nccl = facts_of(NCCL_IB, node="alpha").nccl
    assert (nccl.version, nccl.cuda_driver, nccl.bootstrap) == ("2.21.5", "12.4", ("eth0", "10.1.0.1"))
    assert nccl.devices == (
        NcclDevice(name="mlx5_0", port=1, link="IB"),
        NcclDevice(name="mlx5_1", port=1, link="IB"),
    )
    assert (nccl.network, nccl.gpu_direct, nccl.nvls, nccl.num_ranks) == ("IB", True, True, 16)
    assert nccl.transports == ("P2P/CUMEM/read", "NET/IB/0/GDRDMA")
    assert (nccl.num_channels, nccl.num_nvls_channels) == (24, 16)


def test_hosts_are_told_apart_and_warnings_of_many_ranks_are_one(facts_of):
    beta = facts_of(NCCL_TROUBLE, node="beta").nccl
    assert (beta.bootstrap[0], beta.lacks_verbs_library) == ("docker0", True)
    assert beta.variables == (("NCCL_P2P_DISABLE", "1"),)
    assert beta.transports == ("SHM/direct/direct", "NET/Socket/0")
    assert isinstance(beta.network, Unknown)
    gamma = facts_of(NCCL_TROUBLE, node="gamma").nccl
    assert len(gamma.warnings) == 1
    assert "No route to host" in gamma.warnings[0]


def test_lines_of_2_2_that_do_not_say_nccl(facts_of):
    nccl = facts_of(NCCL_2_2, node="delta").nccl
    assert (nccl.version, nccl.bootstrap) == ("2.2.13", ("lo", "127.0.0.1"))
    assert "timed out" in nccl.warnings[0]


def test_no_device_found_is_no_device_not_unknown(facts_of):
    nccl = facts_of("host1:1:1 [0] NCCL INFO NET/IB : No device found.").nccl
    assert nccl.devices == ()
    assert isinstance(
        facts_of("host1:1:1 [0] NCCL INFO Bootstrap : Using ib0:10.0.0.1<0>").nccl.devices, Unknown
    )
