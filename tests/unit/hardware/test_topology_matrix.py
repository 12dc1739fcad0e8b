"""Matrices as they are printed and as people paste them: the same wiring, or what is missing said."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drivetrain.hardware.topology.matrix import read_matrices
from drivetrain.spec.unknown import Unknown
from wiring import EIGHT, EIGHT_ROWS, LEGEND, NIC_NAMES, NICS, heading, pairs, rows

HEAD = heading(8, NICS)


def read(text):
    return read_matrices(text, "paste")


def links_of(topology):
    return {pair: str(link) for pair, link in topology.links.items() if not isinstance(link, Unknown)}


RIGHT = {(a, b): pairs(a, b) for a in range(8) for b in range(a + 1, 8)}


def each_line(change):
    return "\n".join(change(line) for line in EIGHT.splitlines())


def wrapped_at_80(line):
    line = line.expandtabs()
    return "\n".join(line[at : at + 80] for at in range(0, len(line), 80)) if line.strip() else line


FORMS = {
    "as printed": EIGHT,
    "underlined heading": EIGHT.replace(HEAD, f"\t\x1b[4m{HEAD[1:]}\x1b[0m"),
    "colour codes that lost their escape": EIGHT.replace(HEAD, f"\t[4m{HEAD[1:]}[0m"),
    "colour codes in caret notation": EIGHT.replace(HEAD, f"\t^[[4m{HEAD[1:]}^[[0m"),
    "Windows line ends": EIGHT.replace("\n", "\r\n"),
    "UTF-16 with its mark": EIGHT.encode("utf-16"),
    "UTF-16 without": EIGHT.encode("utf-16-le"),
    "tabs as blanks": EIGHT.expandtabs(8),
    "narrow tabs": EIGHT.expandtabs(4),
    "one blank between cells": re.sub(r"[ \t]+", " ", EIGHT),
    "heading without its tab": EIGHT.replace(HEAD, HEAD.strip()),
    "quoted": each_line(lambda line: f">> > {line}"),
    "indented": each_line(lambda line: f"        {line}"),
    "in a fence": f"```text\n{EIGHT}```",
    "a diff's": each_line(lambda line: f"+{line}"),
    "a log with time stamps": each_line(
        lambda line: f"2031-02-03T10:00:{len(line) % 60:02d}Z node-7 F {line}"
    ),
    "srun -l": each_line(lambda line: f"0: {line}"),
    "mpirun --tag-output": each_line(lambda line: f"[1,0]<stdout>:{line}"),
    "a pod's": each_line(lambda line: f"[pod/trainer-0/main] {line}"),
    "a program's repr": repr(EIGHT),
    "HTML": "<pre>" + EIGHT.replace("\n", "<br/>") + "</pre>",
    "hard spaces": EIGHT.replace("\t", "\u00a0 "),
    "wrapped at 80 columns": each_line(wrapped_at_80),
    "a prompt with a picture before it": f"(base) \U0001f680 user@host$ nvidia-smi topo -m\n{EIGHT}",
    "the heading twice": f"{HEAD}\n{EIGHT}",
    "glued cells": EIGHT.replace("SYS\tSYS", "SYSSYS").replace("NODE\tNODE", "NODENODE"),
    "glued heading": EIGHT.replace(
        HEAD, "\t" + "".join(f"GPU{at}" for at in range(8)) + HEAD[HEAD.index("\tNIC0") :]
    ),
    "a heading whose last word is lost": EIGHT.replace("GPU NUMA ID", "GPU NUMA"),
    "a heading glued to its columns": EIGHT.replace("NIC3\tCPU", "NIC3CPU"),
    "a heading with a misspelt column": EIGHT.replace("GPU NUMA ID", "GPU NUMA IB"),
    "affinity glued to the cells": re.sub(r"\t(0-31|32-63)", r"\1", EIGHT),
    "NIC names without their heading": EIGHT.replace("NIC Legend:\n", ""),
}


@pytest.mark.parametrize("name", FORMS)
def test_however_it_was_pasted_it_is_the_same_machine(name):
    topology = read(FORMS[name])[0]
    assert topology.unknown == ()
    assert topology.indices == tuple(range(8))
    assert links_of(topology) == RIGHT
    assert [nic.name for nic in topology.nics] == ["mlx5_0", "mlx5_2", "mlx5_4", "mlx5_6"]
    assert topology.nearest_nics(5)[0][0].name == "mlx5_4"
    assert [gpu.numa for gpu in topology.gpus] == [frozenset({gpu // 4}) for gpu in range(8)]
    assert topology.gpus[0].cpus == frozenset(range(32))


TABLES = {
    "markdown": "\n".join(
        "| " + " | ".join(cell.strip() for cell in line.split("\t")) + " |" for line in [HEAD, *EIGHT_ROWS]
    ),
    "one line": " ".join([HEAD, *EIGHT_ROWS]),
    "rows from the last up": "\n".join([HEAD, *reversed(EIGHT_ROWS)]),
    "the heading again in the middle": "\n".join([HEAD, *EIGHT_ROWS[:4], HEAD, *EIGHT_ROWS[4:]]),
    "without a heading": "\n".join(EIGHT_ROWS),
    "notes behind the rows": "\n".join([HEAD, *(f"{row}   # node 3" for row in EIGHT_ROWS)]),
    "twice": f"{EIGHT}\n{EIGHT}",
}


@pytest.mark.parametrize("name", TABLES)
def test_links_survive_other_shapes(name):
    assert links_of(read(TABLES[name])[0]) == RIGHT


def test_old_words_are_read():
    """Drivers before 384: SOC for SYS; K80 boards: PSB; no NUMA column; a last cell without its blank."""
    words = {frozenset({0, 1}): "PSB", frozenset({2, 3}): "PIX"}
    text = "\n".join(
        [
            heading(4, columns="CPU"),
            *rows(4, lambda a, b: words.get(frozenset({a, b}), "SOC"), lambda _: "0-7"),
        ]
    )
    topology = read(text.replace(" X \t0-7", " X\t0-7"))[0]
    assert links_of(topology) == {
        (0, 1): "PSB", (0, 2): "SYS", (0, 3): "SYS", (1, 2): "SYS", (1, 3): "SYS", (2, 3): "PIX",
    }  # fmt: skip
    assert isinstance(topology.gpus[0].numa, Unknown)


def test_a_single_gpu_is_a_machine_too():
    text = f"{heading(1, ['NIC0'])}\nGPU0\t X \tPHB\t0-71\t0\t\t1\nNIC0\tPHB\t X \t\t\t\n"
    (topology,) = read(text)
    assert (topology.indices, topology.links, topology.gpus[0].memory_numa) == ((0,), {}, 1)


@pytest.mark.parametrize(
    ("tail", "cpus", "numa"),
    [
        ("0-63\t0\t\tN/A", range(64), {0}),
        ("0-63\t\tN/A", range(64), None),
        ("0-63\t0-1\t\tN/A", range(64), {0, 1}),
        ("\t1\t\tN/A", None, {1}),
        ("\t\t\t", None, None),
        ("N/A\tN/A\t\tN/A", None, None),
        ("0-3, 8-11   0       N/A", [0, 1, 2, 3, 8, 9, 10, 11], {0}),
        ("0-71\t0,2-9\t\t2", range(72), {0, *range(2, 10)}),
        ("0-63,7-9\t0\t\tN/A", None, {0}),
        ("0-6x\t0\t\tN/A", None, {0}),
    ],
)
def test_affinities_are_told_apart_although_cells_are_empty(tail, cpus, numa):
    (topology,) = read("\n".join([heading(2), *rows(2, lambda *_: "PHB", lambda _: tail)]))
    gpu = topology.gpus[1]
    assert gpu.cpus == frozenset(cpus) if cpus is not None else isinstance(gpu.cpus, Unknown)
    assert gpu.numa == frozenset(numa) if numa is not None else isinstance(gpu.numa, Unknown)


def test_what_a_cut_paste_lacks_comes_from_the_other_half_or_is_unknown():
    cut = "\n".join([HEAD, *EIGHT_ROWS[:6], EIGHT_ROWS[6][: EIGHT_ROWS[6].index("X")]])
    (topology,) = read(cut)
    assert links_of(topology) == {pair: code for pair, code in RIGHT.items() if pair != (6, 7)}
    assert any(line.startswith("GPU6-GPU7:") for line in topology.unknown)
    assert "GPU6, GPU7: no affinity could be read" in topology.unknown
    assert topology.nearest_nics(6)[0] == ()


def test_half_of_a_number_is_no_number():
    whole = "\n".join([HEAD, *EIGHT_ROWS])
    end = whole.index("\n", whole.index("\nGPU6") + 1)
    cut = whole[: whole.index("NV12", whole.index("\nGPU6")) + 3]
    assert cut.endswith("NV1")
    assert end > len(cut)
    assert isinstance(read(cut)[0].link(6, 7), Unknown)


def damaged(old, new, row):
    """The matrix with `old` replaced in one row, and without the other row that says the same."""
    return "\n".join(
        [HEAD, *(line.replace(old, new, 1) if at == row else line for at, line in enumerate(EIGHT_ROWS))]
    )


@pytest.mark.parametrize("cell", ["NV13", "NV2", "PIX", "NODE"])
def test_rows_that_contradict_each_other_make_the_link_unknown(cell):
    topology = read(damaged("NV12", cell, 0))[0]
    assert links_of(topology) == {pair: code for pair, code in RIGHT.items() if pair != (0, 1)}
    assert any("GPU0-GPU1" in line and "differ" in line for line in topology.unknown)


@pytest.mark.parametrize("cell", ["NV0", "NV19", "NV1Z", "PIY", "N/A", "?", "nv12", "NV012"])
def test_a_cell_that_is_no_link_leaves_it_to_the_other_row(cell):
    assert links_of(read(damaged("NV12", cell, 0))[0]) == RIGHT


def test_a_row_that_lost_a_cell_is_not_read_a_column_off():
    topology = read(damaged("SYS\t", "", 1))[0]
    assert links_of(topology) == RIGHT
    assert any("row GPU1" in line for line in topology.unknown)


@pytest.mark.parametrize(
    ("old", "new"), [("GPU3", "GPU2"), ("GPU3", "GPU9"), ("GPU3", "G~U3"), ("GPU7", "GPU1")]
)
def test_a_damaged_heading_is_mended_by_the_rows(old, new):
    topology = read(EIGHT.replace(HEAD, HEAD.replace(old, new, 1)))[0]
    assert links_of(topology) == RIGHT


def test_a_subset_of_columns_keeps_its_numbers():
    text = "\tGPU0\tGPU1\tGPU4\tGPU5\n" + "\n".join(
        f"GPU{a}\t" + "\t".join(" X " if a == b else pairs(a, b) for b in (0, 1, 4, 5)) for a in (0, 1, 4, 5)
    )
    assert read(text)[0].indices == (0, 1, 4, 5)


P2P = " \tGPU0\tGPU1\t\n GPU0\tX\t{0}\t\n GPU1\t{0}\tX\t\n"
TWO = "\n".join([heading(2), *rows(2, lambda *_: "PHB")])


@pytest.mark.parametrize(
    ("table", "refused"),
    [
        (P2P.format("GNS"), {(0, 1): "GNS"}),
        (P2P.format("OK"), {}),
        ("$ nvidia-smi topo -p2p n\n" + P2P.format("NS"), {}),
        ("$ nvidia-smi topo -p2p r\n" + P2P.format("NS"), {(0, 1): "NS"}),
    ],
)
def test_a_peer_table_is_not_taken_for_a_matrix(table, refused):
    (topology,) = read(f"{TWO}\n{LEGEND}\n{table}")
    assert links_of(topology) == {(0, 1): "PHB"}
    assert topology.refused_peers == refused


def test_a_whole_matrix_goes_before_a_cut_one_and_paths_alone_come_last():
    only_pcie = EIGHT.replace("NV12", "NODE")
    found = read(
        f"$ nvidia-smi topo -mp\n{only_pcie}\n{HEAD}\n{EIGHT_ROWS[0]}\n\n$ nvidia-smi topo -m\n{EIGHT}"
    )
    assert [links_of(topology)[0, 1] for topology in found] == ["NV12", "NV12", "NODE"]
    assert links_of(found[0]) == RIGHT


def test_two_nodes_whose_lines_alternate_are_two_machines():
    other = EIGHT.replace("NV12", "NV4")
    lines = [
        f"{node}: {line}"
        for both in zip(EIGHT.splitlines(), other.splitlines(), strict=True)
        for node, line in zip(("n1", "n2"), both, strict=True)
    ]
    first, second = read("\n".join(lines))
    assert links_of(first) == RIGHT
    assert links_of(second) == {pair: code.replace("NV12", "NV4") for pair, code in RIGHT.items()}


def test_names_of_gpus_in_the_same_paste_are_used():
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    listed = f"GPU 0: NVIDIA H100 PCIe (UUID: {uuid})\nGPU 1,2: NVIDIA H100 PCIe\n"
    gpus = read(listed + EIGHT)[0].gpus
    assert gpus[0].uuid == uuid
    assert [gpu.name for gpu in gpus[:3]] == ["NVIDIA H100 PCIe"] * 3
    assert isinstance(gpus[3].name, Unknown)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        LEGEND,
        NIC_NAMES,
        "GPU0 is joined to GPU1 by PIX and NODE",
        "GPU 0: NVIDIA A100",
        P2P.format("OK"),
    ],
)
def test_what_is_no_matrix_is_none(text):
    assert read(text) == []


PRINTED = EIGHT.encode()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(PRINTED) - 1), st.integers(0, 7))
@example(0, 0)
def test_a_flipped_bit_never_makes_another_link(place, bit):
    flipped = bytearray(PRINTED)
    flipped[place] ^= 1 << bit
    for topology in read(bytes(flipped))[:1]:
        assert links_of(topology).items() <= RIGHT.items()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(PRINTED)))
def test_a_cut_never_makes_another_link(end):
    for topology in read(PRINTED[:end])[:1]:
        assert links_of(topology).items() <= RIGHT.items()


@settings(max_examples=40, deadline=None)
@given(st.permutations(EIGHT.splitlines()))
def test_shuffled_lines_never_make_another_link(lines):
    for topology in read("\n".join(lines))[:1]:
        assert links_of(topology).items() <= RIGHT.items()


_WORDS = [
    "GPU0",
    "GPU1",
    "GPU2",
    "X",
    "NV1",
    "SYS",
    "\t",
    " ",
    "\n",
    "NIC0",
    "0-3",
    "N/A",
    "CPU Affinity",
    "|",
    "OK",
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(_WORDS), max_size=60).map("".join) | st.binary(max_size=200))
def test_no_text_makes_it_fail(text):
    for topology in read(text):
        assert set(topology.links) == {(a, b) for a in topology.indices for b in topology.indices if a < b}
        assert all(isinstance(link, Unknown) or str(link) for link in topology.links.values())
