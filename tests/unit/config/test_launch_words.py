"""Machines and processes as torchrun's users write them."""

from __future__ import annotations

import pytest

from drivetrain.cli.launch import command
from drivetrain.config.launch_words import PET_VARIABLES, split_layout, split_nodes
from drivetrain.spec.errors import InputError


def test_machines_are_a_number_or_a_range():
    assert split_nodes("3") == (3, 3)
    assert split_nodes("1:4") == (1, 4)


@pytest.mark.parametrize("wrong", ["", "two", "0", "3:2", "0:2", "1:", "-1", "1" * 30, "٣"])
def test_other_machines_are_refused(wrong):
    with pytest.raises(InputError, match="--nnodes"):
        split_nodes(wrong)


def test_a_layout_is_machines_by_processes():
    assert split_layout("2x8") == ("2", "8")
    assert split_layout("1:4Xgpu") == ("1:4", "gpu")


@pytest.mark.parametrize("wrong", ["2*8", "2by8", "x8", "2x", "2xall", "2x8x3"])
def test_other_layouts_are_refused(wrong):
    with pytest.raises(InputError, match="-j 2x8"):
        split_layout(wrong)


def test_both_verbs_take_the_same_variables_for_what_both_have():
    for option in command.params:
        if isinstance(option.envvar, str) and option.name not in ("rdzv_backend", "monitor_interval"):
            assert PET_VARIABLES[option.envvar] == f"launch.{option.name}"
