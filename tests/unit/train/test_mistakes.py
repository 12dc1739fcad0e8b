"""A user's mistakes in a task are said in one sentence, before or at the first step."""

import pytest
import torch
from torch import nn

import drivetrain as dt


class Points:
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.tensor([index / 32, 1.0]), torch.tensor([float(index % 3)])


def squares(out, micro):
    return (out - micro.y).square().mean(dim=1)


def adam(model):
    return torch.optim.AdamW(model.parameters())


def train_once(
    *, build_model=lambda: nn.Linear(2, 1), build_optimizer=adam, loss=squares, weight=None, data=None
):
    run = dt.Run(global_batch=8, device="cpu")
    state = run.setup(build_model, build_optimizer)
    objective = dt.Objective(loss=loss, weight=weight)
    for step in run.stream(data or Points(), steps=1, loader_cost="memory"):
        return run.train_step(state, step, objective).loss
    return None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"build_model": lambda: None}, "build_model.*NoneType"),
        ({"build_optimizer": lambda model: None}, "build_optimizer.*NoneType"),
        ({"build_optimizer": lambda model: torch.optim.LBFGS(model.parameters())}, "several times a step"),
        (
            {"build_optimizer": lambda model: torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)},
            "2 of its 2 parameters are not of the model",
        ),
        ({"loss": lambda out, micro: squares(out.detach(), micro)}, "does not depend on any parameter"),
        ({"loss": lambda out, micro: (out - micro.y).square()}, r"shape \(8, 1\)"),
        ({"loss": lambda out, micro: nn.functional.mse_loss(out, micro.y)}, "looks like a mean"),
    ],
)
def test_the_mistake_is_said(options, said):
    with pytest.raises(dt.InputError, match=said):
        train_once(**options)


def test_a_sum_a_loss_a_sample_and_a_mean_with_its_own_weight_are_taken():
    each = train_once()
    summed = train_once(loss=lambda out, micro: (out - micro.y).square().sum())
    mean = train_once(loss=lambda out, micro: nn.functional.mse_loss(out, micro.y), weight=lambda micro: 1.0)
    assert each == pytest.approx(summed, rel=1e-5) == pytest.approx(mean, rel=1e-5)


def test_settings_are_checked_by_name_and_kind():
    with pytest.raises(dt.InputError, match="global_batch"):
        dt.Run(global_bach=8)
    with pytest.raises(dt.InputError, match="CheckpointPolicy"):
        dt.Run(checkpoint={"every_steps": 5})


class Cached(nn.Module):
    """Makes a buffer in its first forward, and returns another thing in training than in evaluation."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.ones(1), persistent=False)
        out = self.linear(self.dropout(x)) * self.mask
        return {"out": out} if self.training else out


def test_a_model_that_makes_buffers_late_and_answers_by_mode_is_trained():
    for loss in (
        lambda out, micro: squares(out["out"], micro),
        lambda out, micro: squares(out["out"], micro).sum(),
    ):
        assert train_once(build_model=Cached, loss=loss) is not None


@pytest.mark.parametrize("options", [{"keep": 0}, {"every_steps": 0}, {"every_minutes": -1.0}])
def test_a_checkpoint_policy_takes_positive_numbers(options):
    with pytest.raises(dt.InputError, match=next(iter(options))):
        dt.CheckpointPolicy(**options)
