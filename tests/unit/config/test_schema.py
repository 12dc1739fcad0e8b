"""The schema's own promises: closed, strict, described, and fields that contradict each other."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from drivetrain.config.fields import field_docs, section_keys
from drivetrain.config.nearest import nearest_key
from drivetrain.config.schema import STRATEGIES, RunConfig

TEXT = {"task": None, "data": {"kind": "text"}, "model": {"name": "gpt"}}
MACHINES = {"nnodes": "2", "rdzv_endpoint": "h:1"}


def config(**fields):
    return RunConfig.model_validate({"task": "a.py:b", **fields})


def test_every_key_says_what_it_is_for_and_what_it_takes():
    docs = field_docs()
    assert len(docs) > 70
    for doc in docs.values():
        assert len(doc.description) > 8, doc.key
        assert doc.expects, doc.key
    assert docs["optim.lr"].expects == "a number greater than 0"
    assert docs["micro_batch"].expects == "a whole number from 1 to 2^31 - 1, or auto"
    assert docs["launch.nproc_per_node"].expects == (
        "a whole number from 1 to 2^31 - 1, or one of auto, gpu, cpu"
    )


def test_a_config_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        config().optim.lr = 3.0


@pytest.mark.parametrize(
    "fields, wanted",
    [
        ({"epochs": None}, "never end"),
        ({"task": None}, "no task"),
        ({"task": None, "data": {"kind": "digits"}}, "neither a model nor a task"),
        ({"data": {"kind": "image_folder"}}, "data.path is not set"),
        ({"optim": {"nesterov": True}}, "adamw has no such momentum"),
        ({"optim": {"name": "sgd", "nesterov": True, "momentum": 0.0}}, "momentum is 0"),
        ({"schedule": {"warmup_epochs": 1.0, "warmup_steps": 1}}, "both set"),
        ({"device": "cpu", "precision": "tf32"}, "only CUDA has"),
        ({"device": "cpu", "launch": {"nproc_per_node": "gpu"}}, "device is cpu"),
        ({"strategy": "single", "launch": {"nproc_per_node": 2}}, "strategy is single"),
        ({"strategy": "single", "launch": MACHINES}, "strategy is single"),
        ({"strategy": "data_parallel", "launch": {"nproc_per_node": 4}}, "strategy is data_parallel"),
        ({"launch": {**MACHINES, "standalone": True}}, "by itself"),
        ({"launch": {"nnodes": "2"}}, "cannot find each other"),
        ({"launch": {**MACHINES, "node_rank": 2}}, "count from 0"),
        ({**TEXT, "model": {"name": "resnet50"}}, "model.name is resnet50, but data.kind is text"),
        ({"task": None, "data": {"kind": "digits"}, "model": {"name": "gpt"}}, "images another model"),
        ({**TEXT, "label_smoothing": 0.1}, "label_smoothing is 0.1, but data.kind is text"),
        ({**TEXT, "model": {"name": "gpt", "num_classes": 5}}, "num_classes is 5, but data.kind is text"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields, wanted):
    with pytest.raises(ValidationError, match=wanted):
        config(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"optim": {"lr": 0.0}},
        {"label_smoothing": 1.0},
        {"checkpoint": {"keep": 0}},
        {"ema_decay": 1.0},
        {"launch": {"nnodes": "3:2"}},
        {"launch": {"nnodes": "0"}},
        {"launch": {"nnodes": True}},
        {"launch": {"master_port": 65536}},
        {"optim": {"betas": [0.9]}},
        {"name": "../up"},
        {"task": "a.py"},
        {"seed": -1},
        {"seed": 2**63},
        {"strategy": "fsdp9"},
        {"deterministic": 1},
        {"global_batch": 2.0},
        {"global_batch": 2**31},
        {"data": {"workers": 10**30}},
        {"max_steps": 2**31},
        {"epochs": 1e7},
        {"schedule": {"warmup_epochs": 1e300}},
        {"launch": {"nnodes": "9" * 30}},
    ],
)
def test_values_out_of_range_or_of_another_type_are_refused(fields):
    with pytest.raises(ValidationError):
        config(**fields)


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_every_strategy_of_the_table_is_accepted(name):
    assert config(strategy=name).strategy == name


@pytest.mark.parametrize(
    "wrong, right",
    [
        ("lr", "optim.lr"),
        ("optim.lrr", "optim.lr"),
        ("optim.label_smoothing", "label_smoothing"),
        ("batch_size", "global_batch"),
        ("nproc_per_node", "launch.nproc_per_node"),
        ("num_workers", "data.workers"),
        ("optimiser", "optim"),
        ("weight_deacy", "optim.weight_decay"),
        ("data.augmentt", "data.augment"),
        ("zzzzzz", None),
    ],
)
def test_the_nearest_key_is_found_in_any_section(wrong, right):
    assert nearest_key(wrong) == right


def test_sections_are_listed_with_their_keys():
    assert section_keys()["model"] == ("name", "num_classes", "kwargs")
    assert "optim" in section_keys()[""]
