"""How many outputs a classifier gets."""

from __future__ import annotations

import pytest

from drivetrain.data.num_classes import settle_num_classes
from drivetrain.spec.errors import InputError


def test_the_model_has_the_datas_classes_or_more() -> None:
    assert settle_num_classes("auto", in_data=3) == 3
    assert settle_num_classes(5, in_data=3) == 5
    assert settle_num_classes(2, in_data=1) == 2


def test_too_few_classes_are_refused() -> None:
    with pytest.raises(InputError, match="the data has 3 classes"):
        settle_num_classes(2, in_data=3)
    with pytest.raises(InputError, match="at least two"):
        settle_num_classes("auto", in_data=1)
