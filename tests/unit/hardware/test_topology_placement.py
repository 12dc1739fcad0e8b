"""Islands, the best sets, where ranks go and what to expect of links: on invented machines."""

from __future__ import annotations

import math
import time

import pytest

from drivetrain.hardware.topology.bandwidth import Expected, all_reduce_bandwidth, best_ring, pair_bandwidth
from drivetrain.hardware.topology.islands import islands
from drivetrain.hardware.topology.links import nvlink, nvlink_generation, read_link
from drivetrain.hardware.topology.matrix import read_matrices
from drivetrain.hardware.topology.nic_choice import choose_nics
from drivetrain.hardware.topology.placement import best_sets
from drivetrain.hardware.topology.rank_layout import keep_or_order, order_gpus, parse_layout, place_ranks
from drivetrain.spec.errors import InputError
from drivetrain.spec.unknown import Unknown
from wiring import EIGHT, EIGHT_ROWS, NICS, halves, heading, pairs, rows


def machine(num_gpus, link, affinity=lambda _: "0-31\t0\t\tN/A", **options):
    columns = options.pop("columns", "CPU,NUMA,GPU")
    nics = options.get("nics", ())
    text = "\n".join([heading(num_gpus, nics, columns), *rows(num_gpus, link, affinity, **options)])
    return read_matrices(text, "test")[0]


def cube(a, b):
    """Eight GPUs in a cube of NVLinks: a ring of four on each socket, two links along two of its edges."""
    same, near = a // 4 == b // 4, (a - b) % 4
    if same:
        return {1: "NV2", 3: "NV2", 2: "NV1"}[near]
    return "NV1" if a % 4 == b % 4 else "SYS"


EIGHT_GPUS = read_matrices(EIGHT, "test")[0]


def test_links_are_ordered_as_the_matrix_means_them():
    codes = ["SYS", "NODE", "PHB", "PXB", "PIX", "PSB", "C2C", "NV1", "NV2", "NV12", "NV18"]
    links = [read_link(code) for code in codes]
    assert [link.order for link in links] == sorted(link.order for link in links)
    assert [link.weight for link in links] == sorted(link.weight for link in links)
    assert read_link("SOC") == read_link("SYS")


def islands_of(topology):
    return [(list(island.gpus), island.kind) for island in islands(topology)]


def test_two_nvlink_pairs_behind_one_switch_are_two_islands():
    both = machine(4, lambda a, b: "NV18" if a // 2 == b // 2 else "PIX", lambda _: "0-11", columns="CPU")
    assert islands_of(both) == [([0, 1], "NVLink"), ([2, 3], "NVLink")]


def test_islands_are_named_by_what_joins_them():
    mixed = machine(
        8,
        lambda a, b: "NV4" if {a, b} == {0, 1} else ("PXB" if {a, b} <= {2, 3} else "SYS"),
        lambda gpu: "64-95\t2\t\tN/A" if gpu == 7 else halves(gpu),
    )
    assert islands_of(mixed) == [
        ([0, 1], "NVLink"),
        ([2, 3], "PCIe switch"),
        ([4, 5, 6], "NUMA node"),
        ([7], "alone"),
    ]


def test_gpus_that_are_all_sys_are_told_apart_by_their_affinity():
    topology = machine(8, lambda *_: "SYS", halves)
    assert islands_of(topology) == [([0, 1, 2, 3], "NUMA node"), ([4, 5, 6, 7], "NUMA node")]
    assert best_sets(topology, 4).sets == ((0, 1, 2, 3), (4, 5, 6, 7))
    by_cpus = machine(8, lambda *_: "SYS", lambda gpu: halves(gpu).split("\t")[0], columns="CPU")
    assert best_sets(by_cpus, 4).sets == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_the_slowest_link_comes_first_then_the_sum():
    topology = machine(8, cube)
    assert best_sets(topology, 2).sets == ((0, 1), (0, 3), (1, 2), (2, 3), (4, 5), (4, 7), (5, 6), (6, 7))
    assert best_sets(topology, 4).sets == ((0, 1, 2, 3), (4, 5, 6, 7))
    # One slow link weighs more than any number of fast ones.
    lame = machine(4, lambda a, b: "SYS" if {a, b} == {0, 1} else ("NV12" if 0 in (a, b) else "PHB"))
    assert best_sets(lame, 3).sets == ((0, 2, 3),)


def test_one_numa_node_then_nics_decide_between_equal_links():
    whole = machine(8, lambda *_: "NV18", halves)
    assert best_sets(whole, 4).sets == ((0, 1, 2, 3), (4, 5, 6, 7))
    with_nic = machine(
        8, lambda *_: "NV18", halves, nics=["NIC0"], nic_link=lambda gpu, _: "NODE" if gpu < 4 else "SYS"
    )
    assert best_sets(with_nic, 4).sets == ((0, 1, 2, 3),)
    # Two GPUs of a pair share their NIC; with as good links, those with a NIC each are better.
    shared = machine(
        4,
        lambda *_: "NV18",
        nics=["NIC0", "NIC1"],
        nic_link=lambda gpu, nic: "PIX" if gpu // 2 == nic else "NODE",
    )
    assert best_sets(shared, 2).sets == ((0, 2), (0, 3), (1, 2), (1, 3))


def test_the_best_among_free_gpus():
    assert best_sets(EIGHT_GPUS, 2, among=[1, 2, 4, 5]).sets == ((4, 5),)
    assert best_sets(EIGHT_GPUS, 3, among=[1, 2]) is None


def test_sets_with_unknown_links_come_last_and_that_is_said():
    cut = read_matrices("\n".join([heading(8, NICS), *EIGHT_ROWS[:6]]), "test")[0]
    best = best_sets(cut, 2)
    assert best.sets == ((0, 1), (2, 3), (4, 5))
    assert best.doubt == "1 of 28 sets hold links that could not be read, and were put last"
    assert "not all links" in best_sets(cut, 8).doubt
    blind = read_matrices(heading(4), "test")[0]
    assert "no set can be preferred" in best_sets(blind, 2).doubt


def test_sixteen_gpus_take_a_moment():
    topology = machine(16, lambda *_: "NV6", lambda gpu: halves(gpu // 2))
    start = time.perf_counter()
    assert best_sets(topology, 8).sets == (tuple(range(8)), tuple(range(8, 16)))
    assert len(best_sets(machine(16, lambda *_: "NV6"), 8).sets) == math.comb(16, 8)
    assert best_ring(topology, range(16)) is not None
    assert order_gpus(topology, range(16), [2, 2, 4]) == tuple(range(16))
    assert time.perf_counter() - start < 8  # about 1 s on an idle core


def places(topology, text):
    return [place.gpu for place in place_ranks(topology, parse_layout(text, len(topology.gpus)))]


def test_tensor_groups_get_the_best_links_then_shard_groups():
    scattered = machine(
        8, lambda a, b: pairs(a % 4 * 2 + a // 4, b % 4 * 2 + b // 4), lambda gpu: halves(gpu % 4 * 2)
    )
    assert places(scattered, "tp=2,dp_replicate=4") == [0, 4, 1, 5, 2, 6, 3, 7]
    assert places(scattered, "tp=2,dp_shard=2,dp_replicate=2") == [0, 4, 1, 5, 2, 6, 3, 7]
    assert places(scattered, "dp_shard=2,dp-replicate=-1") == [0, 4, 1, 5, 2, 6, 3, 7]
    assert places(scattered, "tp=2") == [0, 4]
    halves_only = machine(8, lambda *_: "SYS", lambda gpu: halves(gpu % 2 * 4))
    assert places(halves_only, "tp=4,dp_replicate=2") == [0, 2, 4, 6, 1, 3, 5, 7]


def test_more_ranks_than_gpus_go_on_machines_like_this_one():
    found = place_ranks(EIGHT_GPUS, parse_layout("tp=4,dp_replicate=4", 8))
    assert [place.node for place in found] == [0] * 8 + [1] * 8
    assert found[9].gpu == found[1].gpu
    assert found[13].coordinates == {"pp": 0, "dp_replicate": 3, "dp_shard": 0, "tp": 1}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("tp=2,ep=2", "there is no axis 'ep'"),
        ("tp=2,tp=4", "twice"),
        ("tp=two", "tp is 'two'"),
        ("tp=0", "tp is '0'"),
        ("tp", "tp is ''"),
        ("tp=-1,pp=-1", "no whole rest"),
        ("tp=3,dp_replicate=-1", "no whole rest"),
        ("tp=12", "do not fill whole machines"),
    ],
)
def test_a_layout_that_cannot_be_placed_is_refused(text, found):
    with pytest.raises(InputError, match=found):
        places(EIGHT_GPUS, text)


def test_the_users_order_stays_where_no_other_is_better():
    assert keep_or_order(EIGHT_GPUS, [5, 4, 1, 0], [2, 2]) == (5, 4, 1, 0)
    assert keep_or_order(EIGHT_GPUS, [0, 4, 1, 5], [2, 2]) == (0, 1, 4, 5)


def test_as_many_gpus_as_possible_have_a_nic_of_their_own():
    topology = machine(
        3,
        lambda *_: "NODE",
        nics=["NIC0", "NIC1"],
        nic_link=lambda gpu, nic: "PIX" if nic == 0 or gpu == 0 else "SYS",
    )
    names = {gpu: nic.name for gpu, nic in choose_nics(topology, [0, 1, 2]).items()}
    assert names == {0: "NIC1", 1: "NIC0", 2: "NIC0"}


def named(name, num_gpus, link):
    lines = "".join(f"GPU {at}: {name}\n" for at in range(num_gpus))
    return read_matrices(lines + "\n".join([heading(num_gpus), *rows(num_gpus, link)]), "test")[0]


@pytest.mark.parametrize(
    ("name", "code", "gb_per_s"),
    [
        ("Tesla V100-SXM2-32GB", "NV2", 2 * 20.0),
        ("NVIDIA A100-SXM4-80GB", "NV12", 12 * 20.0),
        ("NVIDIA RTX A6000", "NV4", 4 * 12.0),
        ("NVIDIA H100 80GB HBM3", "NV18", 18 * 20.6),
        ("NVIDIA B200", "NV18", 18 * 40.1),
    ],
)
def test_nvlinks_carry_what_their_generation_does(name, code, gb_per_s):
    expected = pair_bandwidth(named(name, 2, lambda *_: code), 0, 1)
    assert (expected.low_bytes_per_s, expected.high_bytes_per_s) == pytest.approx((gb_per_s * 1e9,) * 2)


def test_an_unknown_model_makes_a_range_over_the_generations_that_have_so_many_links():
    expected = pair_bandwidth(machine(2, lambda *_: "NV18"), 0, 1)
    assert (expected.low_bytes_per_s, expected.high_bytes_per_s) == pytest.approx((18 * 20.6e9, 18 * 40.1e9))
    assert "model is not known" in expected.why
    assert nvlink_generation("NVIDIA RTX 6000 Ada Generation") is None


def test_pcie_without_its_generation_says_what_was_assumed():
    expected = pair_bandwidth(machine(2, lambda *_: "PIX"), 0, 1)
    assert (expected.low_bytes_per_s, expected.high_bytes_per_s) == pytest.approx((12e9, 48e9))
    assert "PCIe 3 x16 to PCIe 5 x16 assumed" in expected.why
    assert pair_bandwidth(machine(2, lambda *_: "SYS"), 0, 1).low_bytes_per_s == pytest.approx(6e9)


def test_a_peer_that_is_refused_has_no_rate_of_its_link():
    table = "\n \tGPU0\tGPU1\n GPU0\tX\tGNS\n GPU1\tGNS\tX\n"
    topology = read_matrices("\n".join([heading(2), *rows(2, lambda *_: "PHB")]) + table, "test")[0]
    refused = pair_bandwidth(topology, 0, 1)
    assert isinstance(refused, Unknown)
    assert "no direct access (GNS)" in refused.reason


def test_an_all_reduce_goes_round_the_ring_with_the_best_slowest_link():
    topology = named("Tesla V100-SXM2-32GB", 8, cube)
    expected = all_reduce_bandwidth(topology, range(8))
    assert isinstance(expected, Expected)
    assert expected.low_bytes_per_s == pytest.approx(20e9)  # across the sockets there is one link, not SYS
    ring = best_ring(topology, range(8))
    hops = [topology.link(a, b) for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)]
    assert min(hop.order for hop in hops) == nvlink(1).order
    assert isinstance(all_reduce_bandwidth(topology, [3]), Unknown)


def test_every_ring_is_found_that_there_is():
    """A machine whose only ring of NVLinks is 0-2-4-1-3-0."""
    ring = {frozenset(edge) for edge in ((0, 2), (2, 4), (4, 1), (1, 3), (3, 0))}
    topology = machine(5, lambda a, b: "NV4" if frozenset({a, b}) in ring else "SYS")
    found = best_ring(topology, range(5))
    assert {frozenset(edge) for edge in zip(found, (*found[1:], found[0]), strict=True)} == ring
