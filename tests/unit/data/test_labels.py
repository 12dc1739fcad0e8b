"""Labels out of range are bad samples, told before the device sees them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.data.labels import CheckedLabels
from drivetrain.data.stream import Stream
from drivetrain.data.workers import LoaderPlan
from drivetrain.spec.batch import plan_batches
from drivetrain.spec.errors import BadSampleError


class Labelled:
    def __init__(self, samples: list[Any]) -> None:
        self.samples_list = samples
        self.fingerprint = "mine"

    def __len__(self) -> int:
        return len(self.samples_list)

    def __getitem__(self, index: int) -> Any:
        return self.samples_list[index]


X = torch.zeros(1)


@pytest.mark.parametrize(
    "sample",
    [
        (X, 10),
        (X, -1),
        (X, torch.tensor(10)),
        (X, np.int64(10)),
        (X, np.array(10)),
        {"x": X, "y": 10},
        {"image": X, "label": 10},
    ],
)
def test_a_label_outside_is_refused_with_its_value(sample: Any) -> None:
    with pytest.raises(ValueError, match=r"its label is (10|-1), but there are 10 classes, 0 … 9"):
        CheckedLabels(Labelled([sample]), 10)[0]


@pytest.mark.parametrize(
    "sample",
    [
        (X, 0),
        (X, 9),
        (X, 1.5),
        (X, torch.zeros(10)),
        (X, "text"),
        X,
        {"pixels": 1},
        (X, -100),
        (X, torch.tensor(2.5)),
    ],
)
def test_other_labels_pass_untouched(sample: Any) -> None:
    assert CheckedLabels(Labelled([sample]), 10, ignore=-100)[0] is sample


def test_a_stream_names_the_sample() -> None:
    dataset = CheckedLabels(Labelled([(X, label) for label in (0, 1, 12, 3)]), 10)
    source = Stream(
        dataset,
        plan=plan_batches(global_batch=4, num_data_ranks=1),
        data_rank=0,
        seed=0,
        loader=LoaderPlan(),
        device=torch.device("cpu"),
    )
    with pytest.raises(BadSampleError, match="sample 2 of Labelled: its label is 12"):
        next(source)


def test_the_data_set_shows_through() -> None:
    checked = CheckedLabels(Labelled([(X, 1)]), 10)
    assert checked.fingerprint == "mine"
    assert len(pickle.loads(pickle.dumps(checked))) == 1
    with pytest.raises(AttributeError):
        _ = checked.nothing
