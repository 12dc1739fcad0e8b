"""Formulas of traffic, by hand; records of collectives as torch writes them."""

import pytest

from drivetrain.bench.traffic import Collective, Work, expected_bytes, parse_record, sent_bytes, total_by_kind
from drivetrain.spec.layout import plan_layout
from drivetrain.spec.unknown import Unknown


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("all_reduce", 1500), ("all_gather", 750), ("reduce_scatter", 750), ("broadcast", 750), ("send", 1000)],
)
def test_a_ring_of_four_sends(kind, expected):
    assert sent_bytes(kind, 1000, 4) == expected
    assert sent_bytes(kind, 1000, 1) == (1000 if kind == "send" else 0)


def test_an_unknown_collective_is_never_taken_for_silence():
    with pytest.raises(ValueError, match="gossip"):
        sent_bytes("gossip", 8, 2)
    with pytest.raises(ValueError, match="gloo:gossip"):
        parse_record([entry("gloo:gossip", [[1]])], {"0": 2})


def entry(name, sizes, *, types=("Float",), group="0"):
    return {
        "profiling_name": name,
        "process_group": [group, "default_pg"],
        "input_sizes": sizes,
        "input_dtypes": list(types),
        "output_sizes": [[2, *sizes[0]]],
        "output_dtypes": list(types),
    }


def test_records_of_gloo_and_nccl_are_read():
    record = [
        entry("gloo:all_gather", [[55]]),
        entry("nccl:_all_gather_base", [[10]], types=["BFloat16"], group="7"),
        entry("nccl:_reduce_scatter_base", [[6, 2]]),
        entry("nccl:send 0->1", [[3, 5]], types=["Half"]),
        entry("nccl:recv 0<-1", [[3, 5]]),
        entry("gloo:all_reduce", [[4], [2]], types=["Double", "Float"]),
    ]
    found = parse_record(record, {"0": 2, "7": 3})
    assert found == [
        Collective(kind="all_gather", num_bytes=440, group="0", group_size=2),
        Collective(kind="all_gather", num_bytes=40, group="7", group_size=3),
        Collective(kind="reduce_scatter", num_bytes=48, group="0", group_size=2),
        Collective(kind="send", num_bytes=30, group="0", group_size=2),
        Collective(kind="all_reduce", num_bytes=40, group="0", group_size=2),
    ]
    assert total_by_kind(found) == {
        "all_gather": pytest.approx(220 + 40 * 2 / 3),
        "reduce_scatter": 24,
        "send": 30,
        "all_reduce": 40,
    }


# Two blocks of 10 × 6 and 6, and 7 × 4 around them: 160 elements.
WORK = {"blocks": (((10, 6), (6,)), ((10, 6), (6,))), "rest": ((7, 4),), "micro_batches": 3, "micro_batch": 2}


def expected(strategy, world_size, *, rank=0, mesh=None, **changes):
    work = Work(**WORK | {"activations": 100, "num_blocks": 2} | changes)
    return expected_bytes(plan_layout(strategy, world_size, mesh), rank, work)


def test_ddp_reduces_all_gradients_once():
    assert expected("ddp", 2) == 160 * 4
    assert expected("ddp", 4) == 1.5 * 160 * 4
    assert expected("ddp", 1) == expected("single", 1) == 0


def test_fsdp_gathers_for_each_forward_and_backward_and_scatters_once():
    # On 2 ranks 7 rows become 8: each block has 66 elements, the rest 32.
    gathers = 3 * (2 * 2 * 66 + 32) * 4 / 2
    assert expected("fsdp", 2) == gathers + (2 * 66 + 32) * 4 / 2
    assert expected("fsdp", 2, gathered_bytes=2) == gathers / 2 + (2 * 66 + 32) * 4 / 2
    assert expected("fsdp", 2, reshards=(False, False)) == 4 * (2 * 66 + 32) * 4 / 2


def test_gloo_has_no_reduce_scatter_and_sums_on_all_ranks():
    without, plain = expected("fsdp", 2, has_reduce_scatter=False), expected("fsdp", 2)
    assert without - plain == (2 * 66 + 32) * 4 / 2


def test_hybrid_sharding_sums_each_shard_over_its_copies():
    hybrid = expected("fsdp", 4, mesh={"dp_replicate": 2})
    assert hybrid == expected("fsdp", 2) + (2 * 66 + 32) / 2 * 4


def test_tensor_parallel_layers_sum_activations_twice_each_way():
    samples, layers = 3 * 2, 2
    assert expected("tensor", 2) == samples * 100 * 4 * (4 * layers + 2)
    half = expected("tensor", 2, activation_bytes=2)
    assert half == samples * 100 * (2 * 4 * layers + 4 * 2)


@pytest.mark.parametrize(
    ("rank", "changes", "boundaries"),
    [
        (0, {}, 1),
        (1, {}, 2),
        (3, {}, 1),
        (0, {"stages_per_rank": 2}, 3),
        (1, {"stages_per_rank": 2}, 4),
        (0, {"stages_per_rank": 2, "folds": True}, 2),
        (1, {"stages_per_rank": 2, "folds": True}, 4),
        (3, {"stages_per_rank": 2, "folds": True}, 2),
    ],
)
def test_a_pipeline_passes_every_micro_batch_over_each_boundary(rank, changes, boundaries):
    assert expected("pipeline", 4, rank=rank, **changes) == boundaries * 3 * 2 * 100 * 4


def test_a_pipelines_tied_matrix_is_summed_over_its_two_holders():
    assert expected("pipeline", 2, tied=50) == expected("pipeline", 2) + 50 * 4


def test_replicas_of_a_pipeline_also_reduce_what_they_hold():
    assert expected("pipeline", 4, mesh={"pp": 2}) == expected("pipeline", 2) + 160 * 4


@pytest.mark.parametrize("strategy", ["tensor", "pipeline"])
def test_what_has_no_formula_is_said(strategy):
    found = expected(strategy, 2, activations=Unknown("no formula for the activations of Net"))
    assert isinstance(found, Unknown)
    assert "Net" in found.reason
    assert isinstance(expected("data_parallel", 1), Unknown)
