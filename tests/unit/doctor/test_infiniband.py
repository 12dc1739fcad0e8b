"""ibstat, ibstatus, ibv_devinfo, show_gids."""

from __future__ import annotations

from doctor_captures import IBSTAT, IBSTATUS, IBV_DEVINFO, SHOW_GIDS

from drivetrain.doctor.facts import Gid
from drivetrain.spec.unknown import Unknown


def test_ibstat_tells_state_rate_and_card(facts_of):
    up, down = facts_of(IBSTAT).rdma
    assert (up.device, up.state, up.physical, up.rate_gbps) == ("mlx5_0", "active", "linkup", 200)
    assert (up.card, up.firmware, up.link_layer, up.sm_lid) == ("MT4123", "20.31.1014", "infiniband", 1)
    assert (down.state, down.physical, down.sm_lid) == ("down", "polling", 0)
    assert isinstance(down.firmware, Unknown)  # the other card's must not be taken for it


def test_ibstatus_tells_lanes_and_the_default_gid(facts_of):
    bond, fast = facts_of(IBSTATUS).rdma
    assert (bond.rate_gbps, bond.lanes, bond.lane_speed, bond.link_layer) == (10, 1, "QDR", "ethernet")
    assert bond.default_gid.startswith("fe80:")
    assert (fast.rate_gbps, fast.lanes, fast.lid, fast.sm_lid) == (400, 4, 0x22, 1)


def test_ibv_devinfo_tells_mtu_and_gids(facts_of):
    roce, fabric = facts_of(IBV_DEVINFO).rdma
    assert (roce.card, roce.state, roce.mtu, roce.mtu_max, roce.rate_gbps) == (
        "MT4125",
        "active",
        1024,
        4096,
        100,
    )
    assert roce.gids[-1] == Gid(index=3, gid="::ffff:10.1.1.1", kind="RoCE v2")
    assert (fabric.state, fabric.link_layer) == ("init", "infiniband")
    assert isinstance(fabric.rate_gbps, Unknown)


def test_several_tools_fill_one_port(facts_of):
    port = next(port for port in facts_of(IBSTAT + "\n" + SHOW_GIDS).rdma if port.device == "mlx5_0")
    assert port.rate_gbps == 200
    assert port.gids == (
        Gid(index=0, gid="fe80:0000:0000:0000:0a0b:0cff:fe0d:0e0f", kind="RoCE v1"),
        Gid(index=3, gid="::ffff:10.1.1.1", kind="RoCE v2"),
    )
    assert port.interface == "eth2"


def test_no_device_is_an_answer(facts_of):
    assert facts_of("No IB devices found").rdma == ()
