import torch
from torch import nn

from drivetrain.engine.ema import Ema


def test_the_average_follows_the_weights_with_a_decay_that_rises():
    module = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        module.weight.fill_(0.0)
    ema = Ema(module, decay=0.5)
    expected = 0.0
    for update in range(1, 8):
        with torch.no_grad():
            module.weight.fill_(float(update))
        ema.update()
        decay = min(0.5, (1 + update) / (10 + update))
        expected = decay * expected + (1 - decay) * update
        assert abs(ema.weights["weight"].item() - expected) < 1e-6


def test_swapping_in_and_out_leaves_both_as_they_were():
    module = nn.Linear(2, 2)
    ema = Ema(module, decay=0.9)
    with torch.no_grad():
        module.weight.add_(1.0)
    live, average = module.weight.detach().clone(), ema.weights["weight"].clone()
    with ema.swapped_in():
        assert torch.equal(module.weight, average)
    assert torch.equal(module.weight, live)
    assert torch.equal(ema.weights["weight"], average)
