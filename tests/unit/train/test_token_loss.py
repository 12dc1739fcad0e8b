"""Chunked cross-entropy: torch's own, in value and gradient, without all logits at once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from drivetrain.train.models.token_loss import IGNORE, chunked_cross_entropy, cross_entropy_of_logits

TOKENS, WIDTH, VOCAB = 23, 12, 40


def drawn(*, ignored=()):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator).requires_grad_()
    weight = torch.randn(VOCAB, WIDTH, generator=generator).requires_grad_()
    targets = torch.randint(VOCAB, (TOKENS,), generator=generator)
    targets[list(ignored)] = IGNORE
    upstream = torch.rand(TOKENS, generator=generator)  # each token weighs something else
    return hidden, weight, targets, upstream


def gradients(losses, hidden, weight, upstream):
    return torch.autograd.grad((losses * upstream).sum(), (hidden, weight))


@pytest.mark.parametrize("chunk_tokens", [1, 7, 23, 100])
@pytest.mark.parametrize("ignored", [(), (0, 6, 7, 22), tuple(range(7, 14))])
def test_losses_and_gradients_are_torchs(chunk_tokens, ignored):
    hidden, weight, targets, upstream = drawn(ignored=ignored)
    losses = chunked_cross_entropy(hidden, weight, targets, chunk_tokens=chunk_tokens)
    expected = F.cross_entropy(hidden @ weight.t(), targets, reduction="none")
    torch.testing.assert_close(losses, expected)
    assert losses[list(ignored)].tolist() == [0.0] * len(ignored)
    torch.testing.assert_close(
        gradients(losses, hidden, weight, upstream), gradients(expected, hidden, weight, upstream)
    )


def test_a_sequences_shape_is_kept():
    hidden, weight, targets, _ = drawn()
    losses = chunked_cross_entropy(hidden[:20].view(4, 5, WIDTH), weight, targets[:20].view(4, 5))
    assert losses.shape == (4, 5)
    expected = F.cross_entropy(hidden[:20] @ weight.t(), targets[:20], reduction="none")
    torch.testing.assert_close(losses.flatten(), expected)


def test_rows_that_pad_the_vocabulary_are_never_predicted_and_get_no_gradient():
    hidden, weight, targets, upstream = drawn()
    targets %= 30
    losses = chunked_cross_entropy(hidden, weight, targets, vocab_size=30, chunk_tokens=5)
    expected = F.cross_entropy(hidden @ weight[:30].t(), targets, reduction="none")
    torch.testing.assert_close(losses, expected)
    ours = gradients(losses, hidden, weight, upstream)
    torch.testing.assert_close(ours, gradients(expected, hidden, weight, upstream))
    assert ours[1][30:].abs().max() == 0


def test_under_autocast_products_are_bf16_and_the_rest_fp32():
    hidden, weight, targets, upstream = drawn()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = chunked_cross_entropy(hidden, weight, targets, chunk_tokens=5)
        expected = F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="none")
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, expected)
    ours = gradients(losses, hidden, weight, upstream)
    assert [g.dtype for g in ours] == [torch.float32, torch.float32]
    exact = gradients(
        F.cross_entropy(hidden @ weight.t(), targets, reduction="none"), hidden, weight, upstream
    )
    torch.testing.assert_close(ours, exact, rtol=0.05, atol=0.05)


def test_it_compiles_as_one_graph():
    hidden, weight, targets, upstream = drawn(ignored=(3,))
    compiled = torch.compile(chunked_cross_entropy, backend="aot_eager", fullgraph=True)
    losses = compiled(hidden, weight, targets, chunk_tokens=7)
    expected = F.cross_entropy(hidden @ weight.t(), targets, reduction="none")
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(
        gradients(losses, hidden, weight, upstream), gradients(expected, hidden, weight, upstream)
    )


def test_fp32_logits_are_never_larger_than_a_chunk():
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            sizes.extend(
                tensor.shape[0]
                for tensor in (out if isinstance(out, (tuple, list)) else (out,))
                if isinstance(tensor, torch.Tensor)
                and tensor.dtype == torch.float32
                and tensor.shape[1:] == (VOCAB,)
            )
            return out

    hidden, weight, targets, upstream = drawn()
    with Watch(), torch.autocast("cpu", dtype=torch.bfloat16):
        losses = chunked_cross_entropy(hidden, weight, targets, chunk_tokens=5)
        gradients(losses, hidden, weight, upstream)
    assert max(sizes) == 5


@pytest.mark.parametrize("chunk_tokens", [5, 100])
def test_from_logits_too(chunk_tokens):
    hidden, weight, targets, upstream = drawn(ignored=(0, 22))
    losses = cross_entropy_of_logits(hidden @ weight.t(), targets, chunk_tokens=chunk_tokens)
    expected = F.cross_entropy(hidden @ weight.t(), targets, reduction="none")
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(
        gradients(losses, hidden, weight, upstream), gradients(expected, hidden, weight, upstream)
    )
