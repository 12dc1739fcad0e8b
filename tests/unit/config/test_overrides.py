"""Telling a verb's own flags from overrides of any key."""

from __future__ import annotations

import pytest

from drivetrain.config.overrides import split_overrides

FLAGS = {"--lr": True, "--nproc-per-node": True, "--standalone": False, "-j": True, "--help": False}


def split(*args):
    rest, overrides = split_overrides(args, FLAGS)
    return rest, [(item.key, item.text, item.where) for item in overrides]


def test_dotted_keys_take_the_next_argument_or_the_text_after_the_equals_sign():
    rest, found = split("--optim.lr", "0.1", "a.yaml", "--data.on-bad-sample=skip")
    assert rest == ["a.yaml"]
    assert found == [
        ("optim.lr", "0.1", "the command line, --optim.lr"),
        ("data.on_bad_sample", "skip", "the command line, --data.on-bad-sample"),
    ]


def test_flags_are_passed_on_in_dashes_with_their_values():
    assert split("--nproc_per_node", "2", "--nproc-per-node=3", "--standalone", "a.yaml") == (
        ["--nproc-per-node", "2", "--nproc-per-node=3", "--standalone", "a.yaml"],
        [],
    )


@pytest.mark.parametrize(
    "args, text, rest",
    [
        (["--x.y", "-0.5"], "-0.5", []),
        (["--x.y"], None, []),
        (["--x.y", "--lr", "1"], None, ["--lr", "1"]),
        (["--x.y", "-j", "1x2"], None, ["-j", "1x2"]),
        (["--x.y="], "", []),
        (["--x.y=a=b"], "a=b", []),
    ],
)
def test_what_counts_as_a_value(args, text, rest):
    assert split(*args) == (rest, [("x.y", text, "the command line, --x.y")])


def test_a_flags_value_may_look_like_an_option():
    assert split("--lr", "--x.y", "1") == (["--lr", "--x.y", "1"], [])


def test_nothing_after_two_dashes_is_an_override():
    assert split("a", "--", "--x.y", "1") == (["a", "--", "--x.y", "1"], [])
