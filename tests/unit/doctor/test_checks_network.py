"""InfiniBand, RoCE and NCCL's start."""

from __future__ import annotations

import pytest
from doctor_captures import IBSTAT, IBSTATUS, IBV_DEVINFO, NCCL_IB, NCCL_TROUBLE

from drivetrain.doctor.checks.nccl_warnings import explain_warning
from drivetrain.doctor.facts import Gid, Host, Nccl, NcclDevice, NodeFacts, RdmaPort, Torch

ROCE = RdmaPort(
    device="mlx5_0",
    port=1,
    state="active",
    link_layer="ethernet",
    rate_gbps=100.0,
    gids=(
        Gid(index=0, gid="fe80::1", kind="RoCE v1"),
        Gid(index=2, gid="::ffff:10.0.0.1", kind="RoCE v1"),
        Gid(index=3, gid="::ffff:10.0.0.1", kind="RoCE v2"),
    ),
)


def port(**values):
    return NodeFacts(
        node="n", rdma=(RdmaPort(**{"device": "mlx5_0", "port": 1, "state": "active", **values}),)
    )


@pytest.mark.parametrize(
    "text, name, status, words",
    [
        (IBSTAT, "rdma_port_state", "warn", "mlx5_1 port 1: down/polling (no cable"),
        (IBSTAT, "rdma_subnet_manager", "pass", "LID 1"),
        (IBSTAT, "rdma_rate", "pass", "200"),
        (IBSTAT, "rdma_gid", "not_checked", "no active Ethernet"),
        (IBSTAT[IBSTAT.index("CA 'mlx5_1'") :], "rdma_port_state", "fail", "no port is active"),
        (IBSTAT[IBSTAT.index("CA 'mlx5_1'") :], "rdma_subnet_manager", "fail", "SM lid 0"),
        (IBSTATUS, "rdma_rate", "warn", "mlx5_bond_0 port 1: only 10 Gb/s (1X QDR)"),
        (IBSTATUS, "rdma_gid", "warn", "link-local"),
        (IBV_DEVINFO, "rdma_mtu", "warn", "mlx5_0 port 1: 1024 of 4096"),
        (IBV_DEVINFO, "rdma_gid", "warn", "index 3"),
        (IBV_DEVINFO, "rdma_port_state", "warn", "no subnet manager has set it up"),
        (NCCL_IB, "nccl_network", "pass", "mlx5_0/IB"),
        (NCCL_IB, "nccl_transports", "pass", "GDRDMA, 24 channels"),
        (NCCL_IB, "gpu_direct", "pass", "on"),
        (NCCL_IB, "nccl_warnings", "pass", "no NCCL WARN"),
        (NCCL_TROUBLE, "nccl_bootstrap", "fail", "docker0"),
        (NCCL_TROUBLE, "nccl_transports", "warn", "NCCL_P2P_DISABLE=1 is set"),
        (NCCL_TROUBLE, "nccl_network", "warn", "no verbs device"),
    ],
)
def test_a_paste_is_judged(findings_of, text, name, status, words):
    finding = next(item for (_, check), item in findings_of(text).items() if check == name)
    assert (finding.status, words in finding.found) == (status, True), finding


@pytest.mark.parametrize(
    "values, status",
    [
        ({"rate_gbps": 400.0, "card": "MT4129"}, "pass"),
        ({"rate_gbps": 200.0, "card": "MT4129"}, "pass"),
        ({"rate_gbps": 100.0, "card": "MT4129"}, "warn"),
        ({"rate_gbps": 56.0, "card": "MT4099"}, "pass"),
        ({"rate_gbps": 10.0, "card": "MT4099"}, "warn"),
        ({"rate_gbps": 25.0, "card": "MT4117"}, "pass"),
        ({"rate_gbps": 25.0}, "warn"),
        ({"rate_gbps": 50.0, "lanes": 1, "link_layer": "infiniband"}, "warn"),
        ({"rate_gbps": 100.0, "lanes": 2, "link_layer": "infiniband"}, "pass"),
        ({}, "not_checked"),
        ({"rate_gbps": 10.0, "state": "down"}, "not_checked"),
    ],
)
def test_a_rate_is_held_against_the_card(check, values, status):
    assert check("rdma_rate", port(**values)).status == status


@pytest.mark.parametrize(
    "variables, nccl, status",
    [
        ((), "2.18.1", "warn"),
        ((), "2.21.5", "pass"),
        ((("NCCL_IB_GID_INDEX", "3"),), "2.18.1", "pass"),
        ((("NCCL_IB_GID_INDEX", "2"),), "2.18.1", "fail"),
        ((("NCCL_IB_GID_INDEX", "x"),), "2.21.5", "pass"),
    ],
)
def test_the_gid_index_must_be_the_routed_entrys(check, variables, nccl, status):
    facts = NodeFacts(node="n", rdma=(ROCE,), host=Host(nccl_variables=variables), torch=Torch(nccl=nccl))
    assert check("rdma_gid", facts).status == status


def test_a_port_without_an_ipv4_gid_fails(check):
    facts = port(link_layer="ethernet", gids=(Gid(index=1, gid="fe80::1", kind="RoCE v2"),))
    assert check("rdma_gid", facts).status == "fail"


@pytest.mark.parametrize(
    "interface, status", [("ib0", "fail"), ("ibp12s0", "fail"), ("ibs1", "fail"), ("eth0", "pass")]
)
def test_an_ipoib_interface_without_verbs_devices_is_a_fault(check, interface, status):
    nccl = Nccl(bootstrap=(interface, "10.0.0.1"), devices=())
    finding = check("nccl_network", NodeFacts(node="n", nccl=nccl))
    assert (finding.status, bool(finding.fix)) == (status, status == "fail")


def test_roce_between_hosts_without_an_index_is_worth_a_look(check):
    devices = (NcclDevice(name="irdma0", port=1, link="RoCE"),)
    for hosts, variables, status in (
        (2, (), "warn"),
        (1, (), "not_checked"),
        (2, (("NCCL_IB_GID_INDEX", "3"),), "not_checked"),
    ):
        nccl = Nccl(devices=devices, num_hosts=hosts, variables=variables)
        assert check("nccl_roce_route", NodeFacts(node="n", nccl=nccl)).status == status


def test_no_nvls_is_normal(check):
    assert check("nccl_nvls", NodeFacts(node="n", nccl=Nccl(nvls=False))).status == "pass"


def test_ranks_with_two_nccl_versions_fail(check):
    nccl = Nccl(version="2.18.1", all_versions=("2.18.1", "2.21.5"))
    assert check("nccl", NodeFacts(node="n", nccl=nccl)).status == "fail"


@pytest.mark.parametrize(
    "text, words",
    [
        ("Call to ibv_modify_qp failed with error Connection timed out", "GID"),
        (
            "NET/IB : Got completion from peer 10.0.0.1<5> with error 12, opcode 0, len 0, vendor err 129",
            "lost",
        ),
        ("Call to ibv_reg_mr failed", "registered"),
        ("NET/IB : Unable to open device mlx5_0", "cannot be opened"),
        ("Bootstrap : no socket interface found", "NCCL_SOCKET_IFNAME"),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000", "one GPU"),
        ("Error while creating shared memory segment /dev/shm/nccl-x (size 4194560)", "shared memory"),
        ("Cuda failure 'out of memory'", "memory"),
        ("socketPollConnect: Connect to 10.0.0.4<5> returned 113(No route to host)", "peer"),
        ("NET/IB : mlx5_0:1 Got async event : port error", "port"),
        ("Mismatched NCCL version detected : rank 0 version 21805 rank 8 version 22105", "versions"),
    ],
)
def test_known_warnings_have_a_meaning_and_a_repair(text, words):
    known = explain_warning(text)
    assert known is not None
    assert words in known.meaning
    assert known.fix


def test_an_unknown_warning_is_quoted(check):
    finding = check("nccl_warnings", NodeFacts(node="n", nccl=Nccl(warnings=("something new",))))
    assert (finding.status, "something new" in finding.found) == ("warn", True)
