"""What a plan says of modules, and which degrees share everything evenly."""

import pytest

from drivetrain.engine.tensor_plan import TensorPlan, check_degree
from drivetrain.spec.errors import InputError


def test_the_first_pattern_that_matches_counts():
    plan = TensorPlan(layers={"blocks.*.out": "row", "blocks.*": "column", "*norm": "replicate"})
    words = [plan.word_of(name) for name in ("blocks.0.out", "blocks.1.up", "norm", "head", "")]
    assert words == ["row", "column", "replicate", None, None]


def test_a_star_alone_is_also_the_model_itself():
    assert TensorPlan(layers={"*": "replicate"}).word_of("") == "replicate"


def test_an_unknown_word_is_refused_with_those_there_are():
    with pytest.raises(InputError, match=r"columns.*no such word\n.*column, row"):
        TensorPlan(layers={"up": "columns"})


@pytest.mark.parametrize(
    ("divided", "tp", "world_size", "found", "do"),
    [
        ({"heads": 12, "rows": 64}, 8, 8, "it does not divide 12 heads", "tp=4"),
        ({"heads": 12, "rows": 64}, 3, 12, "64 rows", "tp=4"),
        ({"heads": 12}, 5, 10, "12 heads", "tp=2"),
        ({"heads": 1}, 2, 4, "1 heads", "strategy fsdp or ddp"),
    ],
)
def test_an_uneven_degree_is_refused_with_the_nearest_even_one(divided, tp, world_size, found, do):
    with pytest.raises(InputError) as refusal:
        check_degree(divided, tp, world_size)
    assert found in refusal.value.found
    assert do in refusal.value.do


def test_an_even_degree_is_taken():
    check_degree({"heads": 12, "rows": 64}, 4, 8)
