"""dump's text loads back to the same config, whatever the config."""

from __future__ import annotations

import sys

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain._version import __version__
from drivetrain.config.dump import dump, write
from drivetrain.config.load import load
from drivetrain.config.marked_yaml import read_marked
from drivetrain.config.schema import RunConfig

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
tricky = st.sampled_from(
    ["off", "yes", "1e-3", "1:2", "null", "~", "0x1f", "true", "a: b", "#", "- x", "\t", "2024"]
)


@st.composite
def configs(draw):
    positive = st.floats(1e-12, 1e6)
    return RunConfig.model_validate(
        {
            "name": draw(st.from_regex(r"\w[\w.-]{0,8}", fullmatch=True)),
            "task": draw(st.sampled_from(["my.py:build", "pkg.module:make"])),
            "model": {
                "name": draw(st.none() | text | tricky),
                "kwargs": draw(st.dictionaries(text | tricky, json)),
            },
            "data": {
                "path": draw(st.none() | text | tricky),
                "workers": draw(st.just("auto") | st.integers(0, 99)),
            },
            "global_batch": draw(st.integers(1, 2**31 - 1)),
            "epochs": draw(positive),
            "compile": draw(st.sampled_from(["auto", True, False])),
            "optim": {"lr": draw(positive), "betas": draw(st.tuples(*[st.floats(0, 0.999)] * 2))},
            "resume": draw(text | tricky),
            "telemetry": {"wandb": draw(st.sampled_from(["off", "offline", "online"]))},
            "launch": {
                "nnodes": draw(st.sampled_from(["1", "2", "1:4"])),
                "rdzv_endpoint": draw(text | tricky),
            },
        }
    )


@settings(max_examples=60, deadline=None)
@given(config=configs())
def test_dumped_text_loads_back_to_the_same_config(config):
    assert RunConfig.model_validate(read_marked(dump(config, ["a note\nof two lines"])).value) == config


@settings(max_examples=60, deadline=None)
@given(value=json)
def test_types_survive_for_this_reader_and_for_yaml_1_1(value):
    config = RunConfig.model_validate({"task": "a.py:b", "model": {"kwargs": {"x": value}}})
    for read in (lambda body: read_marked(body).value, yaml.safe_load):
        assert repr(read(dump(config))["model"]["kwargs"]["x"]) == repr(value)


def test_the_header_names_versions_and_notes_without_importing_torch():
    lines = dump(RunConfig(task="a.py:b"), ["device: cpu (no driver)"]).splitlines()
    assert lines[0].startswith(f"# drivetrain {__version__}, torch 2.")
    assert lines[0].endswith(f"Python {sys.version.split()[0]}")
    assert lines[1] == "# device: cpu (no driver)"


def test_written_files_load_and_leave_nothing_beside_them(tmp_path):
    config = load("digits")
    write(config, tmp_path / "config.yaml", ["note"])
    assert load(tmp_path / "config.yaml") == config
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "config.yaml"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="No space"):
        write(load("digits"), path)
    assert [(item.name, item.read_text()) for item in tmp_path.iterdir()] == [("config.yaml", "old")]
