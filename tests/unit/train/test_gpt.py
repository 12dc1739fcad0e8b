"""The GPT: its mathematics, its weights, and its cuts into stages."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from drivetrain.spec.errors import InputError
from drivetrain.train.models.gpt import Gpt
from drivetrain.train.models.gpt_blocks import Attention, Rope, causal_attention
from drivetrain.train.models.gpt_config import GptConfig, flops_per_token, num_parameters

TINY = GptConfig(num_layers=3, width=32, num_heads=4, num_kv_heads=2, vocab_size=61, max_sequence_length=16)
UNTIED = dataclasses.replace(TINY, tied=False)
GPT_1B = GptConfig(
    num_layers=24, width=2048, num_heads=16, ffn_width=5504, vocab_size=50304, max_sequence_length=2048
)


def built(config, seed=3):
    torch.manual_seed(seed)
    return Gpt(config)


def tokens(*shape, seed=0):
    return torch.randint(TINY.vocab_size, shape, generator=torch.Generator().manual_seed(seed))


# -- rotary positions --------------------------------------------------------------------------------------


def test_only_the_distance_between_two_positions_matters():
    rope = Rope(TINY)
    query, key = torch.randn(2, 1, TINY.head_width)
    at = lambda vector, place: rope(vector.expand(16, -1))[place]  # noqa: E731
    products = {d: [at(query, p + d) @ at(key, p) for p in range(16 - d)] for d in (0, 3, 7)}
    for values in products.values():
        torch.testing.assert_close(torch.stack(values), values[0].expand(len(values)))
    assert not torch.allclose(products[0][0], products[3][0])


def test_a_turn_keeps_lengths_and_position_0_as_it_is():
    rope = Rope(TINY)
    x = torch.randn(2, 4, 16, TINY.head_width)
    torch.testing.assert_close(rope(x).norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(rope(x)[..., 0, :], x[..., 0, :])


def test_the_slowest_and_fastest_pairs_turn_as_the_formula_says():
    x = torch.zeros(16, TINY.head_width)
    x[:, 0] = x[:, 3] = 1.0  # pairs (0, 4) and (3, 7) of a head of 8
    turned = Rope(TINY)(x)
    position = torch.arange(16.0)
    torch.testing.assert_close(turned[:, 0], position.cos())
    torch.testing.assert_close(turned[:, 4], position.sin())
    torch.testing.assert_close(turned[:, 7], (position * 10_000 ** (-6 / 8)).sin())


# -- attention ---------------------------------------------------------------------------------------------


def test_no_position_sees_a_later_one():
    model, x = built(TINY), tokens(2, 16)
    changed = x.clone()
    changed[:, 9] = (changed[:, 9] + 1) % TINY.vocab_size
    before, after = model(x), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert (before[:, 9:] != after[:, 9:]).any(dim=-1).all()


def test_shared_keys_and_values_equal_repeated_ones():
    query, key, value = torch.randn(2, 4, 10, 8), torch.randn(2, 2, 10, 8), torch.randn(2, 2, 10, 8)
    repeated = [x.repeat_interleave(2, dim=1) for x in (key, value)]
    scores = query @ repeated[0].transpose(-1, -2) / 8**0.5
    allowed = torch.ones(10, 10, dtype=torch.bool).tril()
    expected = scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1) @ repeated[1]
    torch.testing.assert_close(causal_attention(query, key, value), expected)
    torch.testing.assert_close(causal_attention(query, *repeated), expected)


def test_a_rank_with_half_of_the_heads_computes_its_half():
    config = dataclasses.replace(TINY, num_layers=1)
    whole = built(config).blocks["0"].attention
    parts = [copy.deepcopy(whole) for _ in range(2)]
    for place, part in enumerate(parts):
        for name in ("query", "key", "value"):
            weight = getattr(whole, name).weight.detach()
            getattr(part, name).weight = torch.nn.Parameter(weight.chunk(2, dim=0)[place])
        part.out.weight = torch.nn.Parameter(whole.out.weight.detach().chunk(2, dim=1)[place])
        assert isinstance(part, Attention)
    x = torch.randn(2, 16, 32)
    torch.testing.assert_close(parts[0](x) + parts[1](x), whole(x))


# -- losses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [TINY, UNTIED, dataclasses.replace(TINY, loss_chunk_tokens=5)])
def test_targets_give_each_sequences_sum_of_losses(config):
    model, x, y = built(config), tokens(3, 16), tokens(3, 16, seed=1)
    logits = model(x)
    assert logits.shape == (3, 16, 61)
    expected = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(3, 16).sum(dim=1)
    losses = model(x, y)
    torch.testing.assert_close(losses, expected)
    ours = torch.autograd.grad(losses.sum(), list(model.parameters()))
    torch.testing.assert_close(ours, torch.autograd.grad(expected.sum(), list(model.parameters())))


def test_an_untrained_model_knows_nothing():
    loss = built(TINY)(tokens(8, 16), tokens(8, 16, seed=1)).detach().mean() / 16
    assert float(loss) == pytest.approx(math.log(61), abs=0.1)


def test_it_learns_to_repeat():
    model = built(TINY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = tokens(4, 16)
    losses = []
    for _ in range(30):
        loss = model(x, x).sum() / x.numel()
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.1 * losses[0]


def test_it_compiles_as_one_graph():
    model, x, y = built(TINY), tokens(2, 16), tokens(2, 16, seed=1)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses, expected = compiled(x, y), model(x, y)
    torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-3)
    ours = torch.autograd.grad(losses.sum(), list(model.parameters()))
    theirs = torch.autograd.grad(expected.sum(), list(model.parameters()))
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.02)


def test_a_longer_sequence_than_it_has_rotations_for_is_refused():
    with pytest.raises(InputError, match="sequences of 17 tokens"):
        built(TINY)(tokens(1, 17))


# -- weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [TINY, UNTIED])
def test_weights_made_on_the_meta_device_are_those_made_directly(config):
    direct = built(config)
    with torch.device("meta"):
        late = Gpt(config)
    assert all(p.is_meta for p in late.parameters())
    assert all(b.is_meta for b in late.buffers())
    late.to_empty(device="cpu")
    late.init_weights(3)
    assert direct.state_dict().keys() == late.state_dict().keys()
    for name, weight in direct.state_dict().items():
        assert torch.equal(late.state_dict()[name], weight), name
    assert (late.head.weight is late.embed.weight) == config.tied
    assert torch.equal(late(tokens(2, 16)), direct(tokens(2, 16)))


def test_the_seed_alone_decides_not_what_was_drawn_before():
    torch.manual_seed(3)
    torch.randn(5)
    again = Gpt(TINY)
    first, other = built(TINY), built(TINY, seed=4)
    assert torch.equal(again.embed.weight, first.embed.weight)
    assert not torch.equal(other.embed.weight, first.embed.weight)


def test_what_is_added_to_the_stream_is_drawn_smaller_with_depth():
    wide = dataclasses.replace(TINY, width=256, num_layers=8)
    block = built(wide).blocks["5"]
    for layer in (block.attention.query, block.ffn.gate, block.ffn.up):
        assert float(layer.weight.detach().std()) == pytest.approx(0.02, rel=0.03)
    for layer in (block.attention.out, block.ffn.down):
        assert float(layer.weight.detach().std()) == pytest.approx(0.02 / 4, rel=0.03)
    assert not torch.equal(block.ffn.gate.weight, block.ffn.up.weight)


def test_initialising_on_the_meta_device_is_refused():
    with torch.device("meta"):
        model = Gpt(TINY)
    with pytest.raises(RuntimeError, match="to_empty"):
        model.init_weights(0)


# -- sizes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [TINY, UNTIED, GPT_1B])
def test_parameters_are_counted_right_from_the_shape(config):
    with torch.device("meta"):
        model = Gpt(config)
    assert num_parameters(config) == sum(p.numel() for p in model.parameters())


def test_the_large_recipe_has_1_3_billion_parameters():
    assert num_parameters(GPT_1B) == pytest.approx(1.317e9, rel=1e-3)


def test_flops_are_those_of_the_matrix_products():
    from torch.utils.flop_counter import FlopCounterMode

    config = dataclasses.replace(TINY, vocab_size=64, num_kv_heads=None)
    model, x = built(config), tokens(2, 16)
    counter, plain = FlopCounterMode(display=False), torch.nn.attention.SDPBackend.MATH
    with counter, torch.nn.attention.sdpa_kernel(plain):
        logits = model(x)
        logits.sum().backward()
    assert counter.get_total_flops() == pytest.approx(flops_per_token(config, 16) * x.numel())


def test_defaults_follow_from_the_width():
    config = GptConfig(num_layers=1, width=768, num_heads=12, vocab_size=50257, max_sequence_length=8)
    assert config.inner_width == 2048
    assert config.padded_vocab_size == 50304
    assert config.kv_heads == 12


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"width": 33}, "width 33 over 4 heads"),
        ({"width": 36}, "no even number"),
        ({"num_kv_heads": 3}, "cannot share 3"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"width": 32.0}, "width is 32.0, not a whole number"),
        ({"rope_theta": "x"}, "rope_theta is 'x'"),
    ],
)
def test_shapes_that_cannot_be_are_refused(change, text):
    with pytest.raises(InputError, match=text):
        dataclasses.replace(TINY, **change)


def test_kwargs_are_checked_by_name():
    with pytest.raises(InputError) as caught:
        GptConfig.from_kwargs({"num_layer": 2, "width": 32}, vocab_size=8, max_sequence_length=4)
    assert "did you mean num_layers?" in caught.value.found
    assert "num_heads is missing" in caught.value.found
