"""Stages of a model: computed one after the other they are the whole; what cannot be cut is refused."""

import re
from collections import OrderedDict

import pytest
import torch
from torch import nn

from drivetrain.engine.objective import call_model
from drivetrain.engine.stages import Cut, aliases_of, keep_stages, plan_stages
from drivetrain.engine.stages_balance import balance
from drivetrain.engine.stages_of_models import cut_of
from drivetrain.engine.strategies.pipeline_forward import Stage
from drivetrain.spec.errors import InputError
from drivetrain.train.models.gpt import Gpt
from drivetrain.train.models.gpt_config import GptConfig


class TwoStreams(nn.Module):
    """Takes a dict, and hands two tensors from layer to layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Swap() for _ in range(4))

    def before(self, left, right, scale):
        return left + 1, right

    def after(self, hidden, right, scale):
        return hidden[0] + scale * hidden[1]

    def forward(self, left, right, scale):
        hidden = self.before(left, right, scale)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.after(hidden, right, scale)

    def pipeline_cut(self):
        names = tuple(f"layers.{i}" for i in range(4))
        return Cut(layers=names, before=self.before, after=self.after)


class Swap(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, hidden):
        left, right = hidden
        return self.linear(right), left


def gpt(*, tied):
    shape = {"num_layers": 5, "width": 32, "num_heads": 4, "vocab_size": 61, "max_sequence_length": 8}
    tokens = torch.arange(16).view(2, 8)
    return (lambda: Gpt(GptConfig(tied=tied, **shape))), (tokens, tokens + 1)


def torchvision_vit():
    from torchvision.models import VisionTransformer

    shape = {
        "image_size": 8,
        "patch_size": 4,
        "num_layers": 5,
        "num_heads": 2,
        "hidden_dim": 8,
        "mlp_dim": 16,
    }
    return (lambda: VisionTransformer(num_classes=3, **shape)), torch.randn(2, 3, 8, 8)


def timm_vit():
    timm = pytest.importorskip("timm", reason="timm is not installed")
    shape = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 5, "num_heads": 2}
    build = timm.models.vision_transformer.VisionTransformer
    return (lambda: build(num_classes=3, class_token=True, reg_tokens=1, **shape)), torch.randn(2, 3, 8, 8)


def sequential():
    def build():
        inner = nn.Sequential(OrderedDict(a=nn.Linear(8, 8), b=nn.LayerNorm(8), c=nn.Linear(8, 8)))
        start = (nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh())
        return nn.Sequential(*start, inner, nn.Linear(8, 2), nn.Tanh())

    return build, torch.randn(2, 2, 2)


def two_streams():
    return TwoStreams, {"left": torch.randn(2, 3), "right": torch.randn(2, 3), "scale": torch.tensor(2.0)}


MODELS = {
    "gpt": lambda: gpt(tied=True),
    "untied gpt": lambda: gpt(tied=False),
    "torchvision vit": torchvision_vit,
    "timm vit": timm_vit,
    "sequential": sequential,
    "two streams": two_streams,
}


@pytest.mark.parametrize("num_stages", [1, 2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_stages_in_a_row_are_the_whole_model(name, num_stages):
    build, inputs = MODELS[name]()
    whole = build()
    hidden, names = None, set()
    for index in range(num_stages):
        module = build()
        module.load_state_dict(whole.state_dict())
        cut = cut_of(module)
        part = plan_stages(module, cut, num_stages)[index]
        keep_stages(module, cut, [part])
        names |= set(module.state_dict())
        hidden = Stage(module, cut, part)(inputs, hidden)
    assert torch.equal(hidden, call_model(whole, inputs))
    assert names == set(whole.state_dict())


def test_a_weight_tied_over_stages_keeps_its_names_in_both_and_no_other():
    with torch.device("meta"):
        models = [gpt(tied=True)[0]() for _ in range(3)]
    for index, model in enumerate(models):
        cut = cut_of(model)
        keep_stages(model, cut, [plan_stages(model, cut, 3)[index]])
    names = [aliases_of(model).get("embed.weight") for model in models]
    assert names == [["embed.weight", "head.weight"], None, ["embed.weight", "head.weight"]]


@pytest.mark.parametrize(
    ("costs", "num_parts", "ends", "expected"),
    [
        ([1] * 8, 4, (0, 0), [2, 2, 2, 2]),
        ([1] * 7, 3, (0, 0), [2, 2, 3]),
        ([1] * 8, 2, (0, 4), [6, 2]),
        ([1] * 8, 2, (4, 0), [2, 6]),
        ([5, 1, 1, 1], 2, (0, 0), [1, 3]),
        ([1, 1], 2, (0, 9), [1, 1]),
    ],
)
def test_layers_are_spread_by_cost_with_heavy_ends_lighter(costs, num_parts, ends, expected):
    bounds = balance(costs, num_parts, before=ends[0], after=ends[1])
    assert [stop - start for start, stop in bounds] == expected
    assert [start for start, _ in bounds[1:]] == [stop for _, stop in bounds[:-1]]


class WrongCut(nn.Module):
    def __init__(self, cut):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
        self.cut = cut

    def pipeline_cut(self):
        return self.cut


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "1 is a BatchNorm1d"),
        (nn.Sequential(nn.Linear(2, 2), nn.InstanceNorm1d(2, track_running_stats=True)), "InstanceNorm1d"),
        (nn.Bilinear(2, 2, 2), "pipeline_cut()"),
        (WrongCut(("a", "b")), "returned a tuple"),
        (WrongCut(Cut(layers=("a", "c"))), "names c"),
        (WrongCut(Cut(layers=("a",))), "b.weight belongs to no parts"),
        (WrongCut(Cut(layers=("a", "b"), last=("b",))), "b.weight belongs to 2 parts"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused(model, said):
    with pytest.raises(InputError, match=re.escape(said)):
        cut_of(model)


def test_more_stages_than_layers_are_refused_with_both_numbers():
    model = sequential()[0]()
    with pytest.raises(InputError, match=r"(?s)pipeline of 7 stages.*has 6 layers.*at most 6"):
        plan_stages(model, cut_of(model), 7)
