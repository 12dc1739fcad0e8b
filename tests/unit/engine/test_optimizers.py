import math

import pytest
import torch
from torch import nn

from drivetrain.engine.optimizers import OptimizerSpec, Schedule
from drivetrain.spec.errors import InputError


def test_weight_decay_leaves_biases_and_norms_alone():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4, 2))
    groups = OptimizerSpec(weight_decay=0.1).parameter_groups(model)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert all(p.ndim >= 2 for p in groups[0]["params"])
    assert all(p.ndim < 2 for p in groups[1]["params"])
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_decay_on_everything_is_one_group():
    model = nn.Linear(3, 2)
    groups = OptimizerSpec(weight_decay=0.1, decay_norms_and_biases=True).parameter_groups(model)
    assert len(groups) == 1
    assert len(groups[0]["params"]) == 2


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_the_optimizer_is_fused_and_lowers_a_loss(name):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = OptimizerSpec(name=name, lr=0.05)(model)
    assert optimizer.defaults["fused"]
    x, y = torch.randn(64, 4), torch.randn(64, 1)
    losses = []
    for _ in range(20):
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_a_frozen_model_is_refused():
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(InputError, match="no parameter that requires a gradient"):
        OptimizerSpec()(model)


def test_warm_up_rises_linearly_to_one_and_cosine_falls_to_its_floor():
    schedule = Schedule(name="cosine", total_steps=110, warmup_steps=10, min_factor=0.1)
    assert [schedule(step) for step in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    assert schedule(9) == schedule(10) == 1.0
    assert schedule(60) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert schedule(110) == schedule(500) == pytest.approx(0.1)


def test_linear_and_step_schedules():
    assert Schedule(name="linear", total_steps=10)(5) == pytest.approx(0.5)
    stepped = Schedule(name="step", step_size=30, gamma=0.1)
    assert [stepped(s) for s in (29, 30, 60)] == pytest.approx([1.0, 0.1, 0.01])
    assert Schedule()(12345) == 1.0
