"""From the command line's words to candidates."""

import pytest

from drivetrain.bench.parity_candidates import candidates, check_gpus, parse_world_sizes
from drivetrain.config.schema import STRATEGIES
from drivetrain.spec.errors import InputError


def named(written, *world_sizes):
    return [(item.name, item.world_size) for item in candidates(written, world_sizes)]


def test_all_is_every_strategy_but_the_reference():
    found = {name for name, _ in named("all", 2)}
    assert found == STRATEGIES.keys() - {"auto", "single"}


@pytest.mark.parametrize("world_size, are_composed", [(2, False), (3, False), (4, True), (6, True)])
def test_all_adds_compositions_where_there_are_ranks_for_them(world_size, are_composed):
    found = {item.name: item for item in candidates("all", [world_size])}
    layouts = {"tensor:tp=2": "dp_replicate", "fsdp:tp=2": "dp_shard", "pipeline:pp=2": "dp_replicate"}
    for name, rest in layouts.items():
        assert (name in found) == are_composed
        if are_composed:
            assert getattr(found[name].layout, rest) == world_size // 2


def test_degrees_belong_to_the_strategy_before_them():
    (first, tensor, last) = candidates("ddp, tensor:tp=2,dp_replicate=2 ,fsdp", [4])
    assert [first.name, tensor.name, last.name] == ["ddp", "tensor:tp=2,dp_replicate=2", "fsdp"]
    assert tensor.layout is not None
    assert (tensor.layout.tp, tensor.layout.dp_replicate) == (2, 2)


def test_each_world_size_once_and_what_uses_one_process_only_there():
    assert named("data_parallel,ddp", 3, 1, 3) == [("data_parallel", 1), ("ddp", 1), ("ddp", 3)]


@pytest.mark.parametrize("num_gpus, runs", [(0, False), (1, False), (2, True)])
def test_one_process_with_several_gpus_needs_these(num_gpus, runs):
    single, parallel, ddp = check_gpus(candidates("single,data_parallel,ddp", [2]), num_gpus)
    assert (parallel.layout is not None) == runs
    assert runs or f"{num_gpus} are used here" in parallel.reason
    assert ddp.layout is not None
    assert single.layout is not None


@pytest.mark.parametrize("written", ["tensor:tp=3", "ddp:tp=2"])
def test_a_layout_that_does_not_fit_the_ranks_is_told_of(written):
    (item,) = candidates(written, [2])
    assert item.layout is None
    assert "tp" in item.reason


@pytest.mark.parametrize(
    "written, says",
    [
        ("dpd", "did you mean ddp"),
        ("auto", "name ddp"),
        ("tensor:tq=2", "no mesh axis 'tq'"),
        ("tensor:tp", "no degree"),
        ("tensor:tp=two", "no degree"),
        ("tp=2", "no strategy 'tp=2'"),
        (" , ", "names none"),
    ],
)
def test_a_mistyped_candidate_is_refused(written, says):
    with pytest.raises(InputError, match=says):
        candidates(written, [2])


def test_world_sizes_are_numbers():
    assert parse_world_sizes("1, 2,3") == (1, 2, 3)
    for wrong in ("", "2,", "0", "-1", "two"):
        with pytest.raises(InputError, match="--world-sizes"):
            parse_world_sizes(wrong)
