import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.spec.errors import InputError
from drivetrain.spec.layout import AXES, Layout, plan_layout


def test_each_strategys_own_axis_takes_all_ranks():
    assert plan_layout("ddp", 4) == Layout(strategy="ddp", dp_replicate=4)
    assert plan_layout("fsdp", 4) == Layout(strategy="fsdp", dp_shard=4)
    assert plan_layout("single", 1) == Layout(strategy="single")


def test_hybrid_sharding_gives_the_rest_to_the_other_axis():
    layout = plan_layout("fsdp", 8, {"dp_replicate": 2})
    assert (layout.dp_replicate, layout.dp_shard, layout.num_data_ranks) == (2, 4, 8)
    assert plan_layout("fsdp", 8, {"dp_shard": 4, "dp_replicate": -1}) == layout
    assert layout.describe() == "dp_replicate=2,dp_shard=4"


def test_shard_groups_are_neighbours():
    layout = plan_layout("fsdp", 8, {"dp_replicate": 2})
    assert [layout.place(rank)["dp_replicate"] for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [layout.data_rank(rank) for rank in range(8)] == list(range(8))


@given(pp=st.integers(1, 4), dp_replicate=st.integers(1, 4), dp_shard=st.integers(1, 4), tp=st.integers(1, 4))
def test_places_are_a_bijection_and_tensor_and_pipeline_ranks_share_data(pp, dp_replicate, dp_shard, tp):
    layout = Layout(strategy="x", pp=pp, dp_replicate=dp_replicate, dp_shard=dp_shard, tp=tp)
    places = [tuple(layout.place(rank)[axis] for axis in AXES) for rank in range(layout.world_size)]
    assert len(set(places)) == layout.world_size
    data_ranks = [layout.data_rank(rank) for rank in range(layout.world_size)]
    assert sorted(set(data_ranks)) == list(range(layout.num_data_ranks))
    assert all(data_ranks.count(rank) == pp * tp for rank in set(data_ranks))


@pytest.mark.parametrize(
    ("strategy", "world_size", "mesh", "said"),
    [
        ("fsdp", 6, {"dp_replicate": 4}, "4 does not divide 6.*nearest layout: dp_replicate=3,dp_shard=2"),
        ("fsdp", 6, {"dp_replicate": 2, "dp_shard": 2}, "make 4 ranks.*nearest"),
        ("fsdp", 4, {"dp_replicate": -1, "dp_shard": -1}, "both -1"),
        ("ddp", 4, {"tp": 2}, "ddp does not use tp"),
        ("ddp", 4, {"dp": 2}, "no mesh axis 'dp'"),
        ("ddp", 4, {"dp_replicate": 0}, "at least 1"),
        ("single", 2, {}, "nearest layout: 1 process"),
        ("fsd", 2, {}, "no such strategy"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_nearest_that_does(strategy, world_size, mesh, said):
    with pytest.raises(InputError) as caught:
        plan_layout(strategy, world_size, mesh)
    assert re.search(said, str(caught.value), re.DOTALL), str(caught.value)
