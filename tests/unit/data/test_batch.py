"""Micro-batches: access, moving, pickling."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from drivetrain.data.bad_samples import SkippedSample
from drivetrain.data.batch import MicroBatch
from drivetrain.spec.errors import InputError


def _micro(data: Any) -> MicroBatch:
    return MicroBatch(
        data=data,
        weight=torch.tensor([1.0, 0.0]),
        num_valid=1.0,
        ids=torch.tensor([4, 7]),
        positions=torch.tensor([10, 11]),
        skipped=(SkippedSample(source="b.jpg", reason="truncated"),),
        params=torch.ones(2, 3),
    )


@pytest.mark.parametrize("kind", ["tuple", "list", "x/y", "image/label"])
def test_x_and_y_are_found_in_tuples_and_dicts(kind: str) -> None:
    x, y = torch.zeros(2, 3), torch.tensor([1, 2])
    forms = {
        "tuple": (x, y),
        "list": [x, y],
        "x/y": {"x": x, "y": y},
        "image/label": {"image": x, "label": y},
    }
    micro = _micro(forms[kind])
    assert micro.x is x
    assert micro.y is y
    assert micro.size == 2


def test_a_lone_tensor_is_the_input() -> None:
    x = torch.zeros(2)
    assert _micro(x).x is x


@pytest.mark.parametrize(
    "data, found",
    [(torch.zeros(2), "Tensor"), ({"pixels": 1}, "'pixels'"), ((torch.zeros(2),), "a tuple of 1")],
)
def test_a_missing_target_says_what_the_samples_are(data: Any, found: str) -> None:
    with pytest.raises(InputError, match=r"target \(y\)") as caught:
        _ = _micro(data).y
    assert found in caught.value.found


def test_moving_keeps_structure_and_leaves_ids_on_the_host() -> None:
    moved = _micro({"x": torch.zeros(2), "more": [torch.zeros(2), "text"]}).to("meta")
    assert moved.data["x"].device.type == "meta"
    assert moved.data["more"][0].device.type == "meta"
    assert moved.data["more"][1] == "text"
    assert moved.weight.device.type == "meta"
    assert moved.ids.tolist() == [4, 7]


def test_crossing_a_process_border_changes_nothing() -> None:
    micro = _micro((torch.arange(2), torch.arange(2)))
    back = pickle.loads(pickle.dumps(micro))
    assert torch.equal(back.x, micro.x)
    assert torch.equal(back.weight, micro.weight)
    assert back.weight.dtype == torch.float32
    assert torch.equal(back.ids, micro.ids)
    assert torch.equal(back.positions, micro.positions)
    assert back.skipped == micro.skipped
    assert torch.equal(back.params, micro.params)
    assert back.num_valid == 1.0
