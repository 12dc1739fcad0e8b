import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.spec.batch import plan_batches
from drivetrain.spec.errors import InputError


@given(
    global_batch=st.integers(1, 3000),
    num_data_ranks=st.integers(1, 64),
    micro_batch=st.none() | st.integers(1, 400),
)
def test_every_sample_of_a_global_batch_belongs_to_exactly_one_micro_batch(
    global_batch, num_data_ranks, micro_batch
):
    if num_data_ranks > global_batch:
        num_data_ranks = global_batch
    plan = plan_batches(global_batch=global_batch, num_data_ranks=num_data_ranks, micro_batch=micro_batch)
    slices = [piece for rank in range(num_data_ranks) for piece in plan.micro_slices(rank)]
    assert [offset for piece in slices for offset in piece] == list(range(global_batch))


@given(global_batch=st.integers(1, 3000), num_data_ranks=st.integers(1, 64), micro_batch=st.integers(1, 400))
def test_shares_differ_by_at_most_one_and_no_micro_batch_is_over_the_limit(
    global_batch, num_data_ranks, micro_batch
):
    num_data_ranks = min(num_data_ranks, global_batch)
    plan = plan_batches(global_batch=global_batch, num_data_ranks=num_data_ranks, micro_batch=micro_batch)
    shares = [len(plan.share(rank)) for rank in range(num_data_ranks)]
    assert max(shares) - min(shares) <= 1
    for rank in range(num_data_ranks):
        pieces = plan.micro_slices(rank)
        assert len(pieces) == plan.accumulation
        assert max(map(len, pieces)) <= plan.micro_batch <= micro_batch


def test_eight_samples_on_three_ranks_are_three_three_two():
    plan = plan_batches(global_batch=8, num_data_ranks=3)
    assert [len(plan.share(rank)) for rank in range(3)] == [3, 3, 2]
    assert plan.accumulation == 1
    assert "2 or 3 per rank" in plan.describe()


def test_more_ranks_than_samples_are_refused_with_both_ways_out():
    with pytest.raises(InputError) as caught:
        plan_batches(global_batch=4, num_data_ranks=6)
    assert "2 ranks would get no sample" in str(caught.value)
    assert "at most 4 ranks" in caught.value.do


@pytest.mark.parametrize("kwargs", [{"global_batch": 0}, {"global_batch": 8, "micro_batch": 0}])
def test_numbers_below_one_are_refused(kwargs):
    with pytest.raises(InputError, match="at least 1"):
        plan_batches(num_data_ranks=1, **kwargs)
