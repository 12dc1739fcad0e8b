"""Run files and overrides: what loads, and that everything wrong is reported at once, each at its place."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import pytest

from drivetrain.config.faults import ConfigErrors
from drivetrain.config.load import load, load_with_advice
from drivetrain.config.overrides import from_command_line, from_environment
from drivetrain.spec.errors import InputError

GOOD = "data: {kind: digits}\nmodel: {name: digits_cnn}\n"


@pytest.fixture
def write(tmp_path):
    def write(text: str | bytes, name: str = "mine.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def faults_of(path, *overrides):
    with pytest.raises(ConfigErrors) as caught:
        load(path, overrides)
    return {(fault.where.removeprefix(str(path)), fault.key): fault.found for fault in caught.value.faults}


def test_a_file_with_defaults_loads_and_takes_its_own_name(write):
    config = load(write(GOOD))
    assert (config.name, config.global_batch, config.optim.name) == ("mine", 256, "adamw")


def test_scalars_follow_yaml_1_2(write):
    text = GOOD + "optim: {lr: 1e-3}\ntelemetry: {wandb: off}\nlaunch: {nnodes: 1:2, rdzv_endpoint: h}\n"
    config = load(write(text))
    assert (config.optim.lr, config.telemetry.wandb, config.launch.max_nodes) == (0.001, "off", 2)


def test_a_whole_number_is_a_float_but_text_and_truth_are_not(write):
    assert load(write(GOOD + "optim: {lr: 1}\n")).optim.lr == 1.0
    for wrong in ("abc", "'0.1'", "true", "null", ".nan", ".inf"):
        assert (":3:13", "optim.lr") in faults_of(write(GOOD + f"optim: {{lr: {wrong}}}\n"))


def test_all_faults_are_reported_at_once_with_line_and_nearest_name(write):
    path = write(
        "global_batchh: 3\n"
        "lr: 1\n"
        "optim:\n"
        "  lr: abc\n"
        "  lrr: 1e-3\n"
        "  betas: [0.9, 3]\n"
        "data: {kind: imagefolder, workers: -1}\n"
        "model: 3\n"
        "precision: bf-16\n"
        "seed: 1\n"
        "seed: 2\n"
        "epochs: null\n"
        "name: 2024\n"
    )
    found = faults_of(
        path,
        from_command_line("--optim.lr-rate", "1"),
        from_command_line("--seed", "x"),
        from_command_line("--optim", "x"),
        from_command_line("--ema-decay", None),
    )
    assert "did you mean global_batch?" in found[":1:1", "global_batchh"]
    assert "did you mean optim.lr?" in found[":2:1", "lr"]
    assert found[":4:7", "optim.lr"] == "'abc' is not a number greater than 0"
    assert "did you mean optim.lr?" in found[":5:3", "optim.lrr"]
    assert found[":6:10", "optim.betas"].startswith("[0.9, 3] is not two numbers")
    assert "did you mean image_folder?" in found[":7:14", "data.kind"]
    assert "from 0 to 2^31 - 1, or auto" in found[":7:36", "data.workers"]
    assert "is not a section" in found[":8:8", "model"]
    assert "did you mean bf16?" in found[":9:12", "precision"]
    assert "already stands in line 10" in found[":11:1", "seed"]
    assert "would never end" in found[":12:9", ""]
    assert "in quotes" in found[":13:7", "name"]
    assert "no such key" in found["the command line, --optim.lr-rate", "optim.lr_rate"]
    assert "not a whole number" in found["the command line, --seed", "seed"]
    assert "set one of its keys" in found["the command line, --optim", "optim"]
    assert "a value is missing" in found["the command line, --ema-decay", "ema_decay"]
    assert len(found) == 16


def test_the_report_names_file_line_and_column_and_what_to_do(write):
    path = write(GOOD + "optim:\n  lrr: 1\n")
    with pytest.raises(InputError) as caught:
        load(path)
    assert f"{path}:4:3: optim.lrr: there is no such key; did you mean optim.lr?" in str(caught.value)
    assert "→" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_fields_that_contradict_each_other_are_found_beside_other_faults(write):
    found = faults_of(
        write("data: {kind: image_folder}\nschedule: {warmup_epochs: 1, warmup_steps: 5}\nsede: 1\n")
    )
    assert "data.path is not set" in found[":1:14", ""]
    assert "both set" in found[":2:44", ""]
    assert "neither a model nor a task" in found["", ""]
    assert "did you mean seed?" in found[":3:1", "sede"]


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("- a\n- b\n", "not a mapping"),
        ("just words\n", "not a mapping"),
        ("optim:\n\tlr: 1\n", "a tab"),
        ("optim: {lr: 1\n", "not YAML"),
        ("a: 'b\n", "not YAML"),
        ("seed: 1\n---\nseed: 2\n", "not YAML"),
        ("seed: \x07\n", "not allowed in YAML"),
        ("seed: !!python/object:os.system 1\n", "is not allowed"),
        ("data: &a {kind: *a}\n", "contains itself"),
        ("? [a, b]\n: 1\n", "a key must be a word"),
        ("[" * 3000, "too deeply"),
    ],
)
def test_text_that_is_no_run_file_is_said_to_be_so(write, text, wanted):
    assert any(wanted in found for found in faults_of(write(text)).values())


def test_aliases_of_aliases_are_counted_as_what_they_stand_for(write):
    layers = "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, 10))
    path = write(GOOD + "x0: &x0 [1, 1, 1]\n" + layers)
    started = time.monotonic()
    (found,) = faults_of(path).values()
    assert "more than 10,000 keys and values" in found
    assert time.monotonic() - started < 10


def test_a_text_with_far_too_many_keys_is_refused_without_reading_it_all(write):
    started = time.monotonic()
    (found,) = faults_of(write("".join(f"key{n}: 1\n" for n in range(60_000)))).values()
    assert "more than 10,000 keys and values" in found
    with pytest.raises(InputError, match="larger than 4096 KiB"):
        load(write(b"# comment\n" * 500_000))
    assert time.monotonic() - started < 20


def test_of_very_many_faults_the_first_are_shown_with_names_and_the_rest_counted(write):
    path = write(GOOD + "".join(f"seeed{n}: 1\n" for n in range(2_000)))
    started = time.monotonic()
    with pytest.raises(ConfigErrors) as caught:
        load(path)
    lines = str(caught.value).splitlines()
    assert time.monotonic() - started < 10
    assert lines[0].endswith("2000 errors")
    assert lines[1].endswith(":3:1: seeed0: there is no such key; did you mean seed?")
    assert (len(lines), lines[51]) == (53, "  … and 1950 more")
    assert "did you mean" not in lines[50]


def test_a_syntax_error_names_its_line(write):
    (place,) = {where for where, _ in faults_of(write("seed: 1\noptim: {lr: 1\nname: x\n"))}
    assert place.startswith(":3:")


def test_a_file_that_is_not_utf_8_is_refused_with_the_line(write):
    with pytest.raises(InputError, match="0xe9 in line 2 is not UTF-8"):
        load(write(b"seed: 1\nname: caf\xe9\n"))


def test_a_byte_order_mark_is_no_part_of_the_first_key(write):
    assert load(write(b"\xef\xbb\xbf" + GOOD.encode())).data.kind == "digits"


def test_a_section_without_keys_has_its_defaults(write):
    assert load(write(GOOD + "optim:\n  # lr: 1\n")).optim.lr == 0.001


def test_overrides_win_in_order_and_take_dashes_or_underscores(write):
    overrides = (
        from_command_line("--optim.weight-decay", "0.5"),
        from_command_line("--optim.lr", "1e-4"),
        from_command_line("--optim.lr", "2e-4"),
        from_command_line("--optim.betas", "[0.8, 0.9]"),
        from_command_line("--deterministic", None),
        from_command_line("--model.kwargs.drop-path-rate", "0.1"),
        from_command_line("--name", "2024"),
        from_command_line("--ema-decay", "null"),
    )
    config = load(write(GOOD + "optim: {lr: 5, weight_decay: 0}\nema_decay: 0.9\n"), overrides)
    assert (config.optim.lr, config.optim.weight_decay, config.optim.betas) == (2e-4, 0.5, (0.8, 0.9))
    assert (config.deterministic, config.name, config.ema_decay) == (True, "2024", None)
    assert config.model.kwargs == {"drop_path_rate": 0.1}


def test_a_key_of_an_unknown_section_or_of_a_plain_value_is_reported_where_it_was_written(write):
    found = faults_of(
        write(GOOD + "seed: 1\n"),
        from_command_line("--modle.name", "x"),
        from_command_line("--seed.more", "2"),
        from_command_line("--epochs.more", "2"),
    )
    assert "no such key" in found["the command line, --modle.name", "modle"]
    assert "has no keys" in found["the command line, --seed.more", "seed.more"]
    assert "is not a number" in found["the command line, --epochs.more", "epochs"]
    assert len(found) == 3


def advice_on(*overrides, recipe="digits"):
    pairs = [from_command_line(name, value) for name, value in overrides]
    return load_with_advice(recipe, pairs)[1]


def test_a_far_other_batch_with_the_files_learning_rate_is_remarked_on(write):
    (note,) = advice_on(("--global-batch", "384"))
    assert "0.004 was written for a global batch of 96, and is used with 384" in note
    assert len(advice_on(("--global-batch", "24"))) == 1
    assert advice_on(("--global-batch", "383")) == ()
    assert advice_on(("--global-batch", "25")) == ()
    assert advice_on(("--global-batch", "384"), ("--optim.lr", "4e-3")) == ()
    assert advice_on() == ()
    # Neither a file that says nothing of one of the two, nor no file, has a rate for its batch.
    assert advice_on(("--global-batch", "4096"), recipe=write(GOOD + "optim: {lr: 0.1}\n")) == ()
    assert advice_on(("--global-batch", "4096"), ("--task", "a.py:b"), recipe=None) == ()


def test_an_override_repairs_the_files_fault(write):
    assert load(write(GOOD + "seed: x\n"), (from_command_line("--seed", "3"),)).seed == 3


def test_pet_variables_set_launch_keys_and_name_themselves_in_errors(write):
    environ = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "gpu", "PET_MASTER_ADDR": "h0", "PET_NODE_RANK": "1"}
    launch = load(write(GOOD), from_environment({**environ, "PET_STANDALONE": "0", "PET_RDZV_ID": ""})).launch
    assert (launch.nnodes, launch.nproc_per_node, launch.master_addr, launch.node_rank) == (
        "2",
        "gpu",
        "h0",
        1,
    )
    assert (launch.standalone, launch.rdzv_id) == (False, None)
    found = faults_of(write(GOOD), *from_environment({"PET_MAX_RESTARTS": "many"}))
    assert ("the environment, PET_MAX_RESTARTS", "launch.max_restarts") in found


def test_a_task_alone_is_enough_and_names_the_run():
    config = load(None, (from_command_line("--task", "work/my_task.py:build"),))
    assert (config.name, config.data.kind, config.task) == ("my_task", "task", "work/my_task.py:build")


def test_a_wrong_task_says_how_to_write_one():
    found = faults_of(None, from_command_line("--task", "my_task.py"))
    assert "file.py:function" in found["the command line, --task", "task"]


def test_a_missing_file_names_near_ones(write, tmp_path):
    write(GOOD, "resnet_big.yaml")
    with pytest.raises(InputError, match=r"did you mean .*resnet_big\.yaml"):
        load(tmp_path / "resnet_bgi.yaml")
    with pytest.raises(InputError, match="did you mean digits"):
        load("digit")
    with pytest.raises(InputError, match="it is a folder"):
        load(tmp_path)


def test_the_recipes_that_come_along_load_by_bare_name():
    assert load("digits").model.name == "digits_cnn"
    data = (from_command_line("--data.path", "/data"),)
    assert load("resnet50", data).optim.lr == 0.5
    assert load("vit_b16", data).schedule.warmup_epochs == 30
    assert load("resnet50", (from_command_line("--data.kind", "synthetic"),)).data.num_classes == 1000
    assert load("gpt").data.path is None
    assert load("gpt_1b").model.kwargs["ffn_width"] == 5504
