import pytest

from drivetrain.diagnose.quantities import Expression, value_of


@pytest.mark.parametrize(
    "text, value",
    [
        ("1.5 GiB", 1.5 * 2**30),
        ("336.00 MiB", 336 * 2**20),
        ("0 bytes", 0.0),
        ("-3e2", -300.0),
        ("abc", "abc"),
    ],
)
def test_sizes_are_bytes_and_numbers_numbers(text: str, value: float | str) -> None:
    assert value_of(text) == value


@pytest.mark.parametrize(
    "source, holds",
    [
        ("a >= 2 and b < 1", True),
        ("a > 2 or c > 1", False),
        ("a > 1 or c > 1", True),
        ("not has(c)", True),
        ("first(c, a) == 2", True),
        ("c > 1", False),
        ("not c > 1", False),
        ("word == 'x'", True),
        ("word > 1", False),
        ("a / 0 > 1", False),
        ("max(a, 5) - 1 == 4", True),
    ],
)
def test_a_condition_on_absent_values_does_not_hold(source: str, holds: bool) -> None:
    assert Expression(source).holds({"a": 2.0, "b": 0.5, "word": "x"}) is holds


@pytest.mark.parametrize("source", ["a.b", "__import__('os')", "[1]", "a if b else c", "x := 1", "a >"])
def test_anything_but_arithmetic_is_refused(source: str) -> None:
    with pytest.raises(ValueError):
        Expression(source)
