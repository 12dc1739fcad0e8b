"""The wiring as text and as a drawing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from drivetrain.hardware.topology.matrix import read_matrices
from drivetrain.hardware.topology.placement import best_sets
from drivetrain.hardware.topology.rank_layout import parse_layout, place_ranks
from drivetrain.report.topology_svg import topology_svg
from drivetrain.report.topology_text import best_lines, layout_lines, topology_lines
from wiring import EIGHT, NICS, heading

EIGHT_GPUS = read_matrices(EIGHT, "a paste")[0]


def test_the_text_shows_links_places_nics_and_what_to_expect():
    text = "\n".join(topology_lines(EIGHT_GPUS))
    assert "8 GPUs (from a paste)" in text
    assert "GPU0  -     NV12  NODE  NODE  SYS   SYS   SYS   SYS   0-31   0     mlx5_0 (PIX)" in text
    assert "NVLink  GPU 0–1" in text
    assert re.search(r"NV12 +0-1, 2-3, 4-5, 6-7 +240 to 481 GB/s", text)
    assert "expected of an all-reduce over all GPUs (bus bandwidth): 6 to 40 GB/s" in text
    assert "unknown" not in text


def test_unknown_cells_are_marked_and_listed():
    text = "\n".join(topology_lines(read_matrices(heading(2, NICS), "x")[0]))
    assert "GPU0  -     ?" in text
    assert "GPU0-GPU1: its cells are missing or cannot be read" in text


def test_the_best_come_with_their_reason_and_each_ranks_cores_and_nic():
    lines = best_lines(EIGHT_GPUS, best_sets(EIGHT_GPUS, 2))
    assert lines[1] == "best 2 GPUs, all equally good"
    assert [line.strip() for line in lines[2:6]] == ["0 1", "2 3", "4 5", "6 7"]
    assert lines[6].startswith(
        "  why: slowest link NV12 (24 of 28 sets have slower or fewer links), all on one NUMA node"
    )
    assert lines[-1] == "  rank 1  GPU1  CPUs 0-31  mlx5_0 (PIX)"


def test_a_layout_says_which_rank_goes_where():
    placed = place_ranks(EIGHT_GPUS, parse_layout("tp=2,dp_replicate=8", 8))
    lines = layout_lines(EIGHT_GPUS, placed, "tp=2,dp_replicate=8")
    assert lines[2] == "  every machine is taken to be wired as this one"
    assert lines[-1] == "  rank 15  node 1, GPU7  dp_replicate 7 tp 1  CPUs 32-63  mlx5_6"


@pytest.mark.parametrize("text", [EIGHT, heading(3, NICS), f"{heading(1)}\nGPU0\t X \t0-3\t0\t\tN/A"])
def test_the_drawing_is_one_well_formed_document_with_every_gpu_and_link(text):
    topology = read_matrices(text, "a <paste> & more")[0]
    root = ElementTree.fromstring(topology_svg(topology))
    words = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {f"GPU{index}" for index in topology.indices} <= set(words)
    assert len(root.findall("{http://www.w3.org/2000/svg}g")) == len(topology.links)
    names = {name for node in root.iter() for name in node.attrib}
    assert not names & {"href", "src"}


def test_the_drawing_names_links_in_its_legend():
    svg = topology_svg(EIGHT_GPUS)
    assert "NV12: 12 bonded NVLinks" in svg
    assert "mlx5_0 (PIX)" in svg
