import re

import pytest

from drivetrain.diagnose.literals import required_texts


@pytest.mark.parametrize(
    "pattern, texts",
    [
        (r"Connection closed by (?:peer|localRank)", {"connection closed by "}),
        (r"\b(?:hello|goodbye)\b x", {"hello", "goodbye"}),
        (r"abcd+efghi", {"efghi"}),
        (r"ab+?cdef", {"cdef"}),
        (r"(?:abc)?defgh", {"defgh"}),
        (r"a[]b]cdefg", {"cdefg"}),
        (r"[^\]]*hello", {"hello"}),
        (r"hel\.lo", {"hel.lo"}),
        (r"(?!absent)present", {"present"}),
        (r"one {2}two|three", {"one ", "three"}),
        (r"loss.{0,4}wordy", {"wordy"}),
    ],
)
def test_the_rarest_text_of_all_matches_is_found(pattern: str, texts: set[str]) -> None:
    re.compile(pattern)
    assert set(required_texts(pattern)) == texts


@pytest.mark.parametrize("pattern", [r"a|bcdef", r"(?:foo|barbar)", r"\d+ \w+", r"(?:abcdef)*"])
def test_a_pattern_without_text_of_its_own_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="plain characters"):
        required_texts(pattern)
