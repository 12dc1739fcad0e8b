"""`drivetrain topo`: its JSON is a public form, its mistakes are named."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import pytest

from wiring import EIGHT, EIGHT_ROWS, NICS, heading


@pytest.fixture
def paste(folder):
    (folder / "paste.txt").write_text(EIGHT)
    return "paste.txt"


def test_the_json_has_these_keys_and_no_others(cli, paste):
    facts = json.loads(cli("topo", "--from", paste, "-k", "2", "-k", "4", "-k", "99", "--json").out)
    assert list(facts) == ["gpus", "links", "islands", "nics", "best", "unknown"]
    assert facts["gpus"] == list(range(8))
    assert facts["links"][0] == {"a": 0, "b": 1, "link": "NV12"}
    assert facts["islands"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert facts["nics"]["7"] == ["mlx5_6"]
    assert facts["best"] == {"2": [[0, 1], [2, 3], [4, 5], [6, 7]], "4": [[0, 1, 2, 3], [4, 5, 6, 7]]}
    assert facts["unknown"] == []


def test_what_cannot_be_read_stands_in_the_json(cli, folder):
    (folder / "cut.txt").write_text("\n".join([heading(8, NICS), *EIGHT_ROWS[:6]]))
    facts = json.loads(cli("topo", "--from", "cut.txt", "-k", "2", "--json").out)
    assert {"a": 6, "b": 7, "link": "unknown"} in facts["links"]
    assert facts["best"]["2"] == [[0, 1], [2, 3], [4, 5]]
    assert any(line.startswith("GPU6-GPU7") for line in facts["unknown"])
    assert any(line.startswith("best 2: 1 of 28 sets") for line in facts["unknown"])


def test_a_layout_is_told_in_both_forms(cli, paste):
    args = ("topo", "--from", paste, "--layout", "tp=2,dp_replicate=-1")
    assert json.loads(cli(*args, "--json").out)["layout"][3] == {
        "rank": 3, "node": 0, "gpu": 3, "pp": 0, "dp_replicate": 1, "dp_shard": 0, "tp": 1,
        "cpus": "0-31", "nic": "mlx5_2",
    }  # fmt: skip
    assert "rank 3  GPU3  dp_replicate 1 tp 1  CPUs 0-31   mlx5_2" in cli(*args).out


def test_text_shows_the_best_sizes_unasked_and_says_what_is_too_many(cli, paste):
    assert "best 4 GPUs" in cli("topo", "--from", paste).out
    assert "best 9 GPUs: there are only 8" in cli("topo", "--from", paste, "-k", "9").out


def test_it_is_drawn_into_a_file(cli, paste, folder):
    shown = cli("topo", "--from", paste, "-o", "wiring.svg")
    assert shown.code == 0
    assert (folder / "wiring.svg").read_text().startswith("<svg")
    assert "drawn: wiring.svg" in shown.err
    for name, found in (("wiring.png", "only SVG is drawn"), ("gone/wiring.svg", "cannot be written")):
        refused = cli("topo", "--from", paste, "-o", name)
        assert (refused.code, found in refused.err) == (2, True)


def test_standard_input_is_a_file_too(cli, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(EIGHT.encode())))
    assert json.loads(cli("topo", "--from", "-", "--json").out)["gpus"] == list(range(8))


def test_other_matrices_in_the_file_are_mentioned(cli, folder):
    (folder / "two.txt").write_text(EIGHT + "\n" + EIGHT.replace("NV12", "NV4"))
    shown = cli("topo", "--from", "two.txt", "--json")
    assert json.loads(shown.out)["links"][0]["link"] == "NV12"
    assert "1 other matrix (8 GPUs)" in shown.err


def test_mistakes_end_with_code_2(cli, paste, folder):
    (folder / "none.txt").write_text("hello")
    for args, found in (
        (("--from", "none.txt"), "holds no matrix"),
        (("--from", paste, "--layout", "ep=2"), "there is no axis 'ep'"),
        (("--from", paste, "-k", "0"), "0 is not in the range"),
    ):
        shown = cli("topo", *args)
        assert (shown.code, found in shown.err) == (2, True), shown.err


def test_this_machine_is_read_without_a_file(cli, monkeypatch):
    from drivetrain.hardware.topology.matrix import read_matrices

    monkeypatch.setattr(
        "drivetrain.hardware.topology.read.read_machine", lambda: read_matrices(EIGHT, "here")[0]
    )
    assert "8 GPUs (from here)" in cli("topo").out
