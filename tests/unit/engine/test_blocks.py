"""Blocks that recompute: the same gradients to the bit, in less memory."""

import copy
from collections import Counter

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from drivetrain.engine.blocks import blocks_of, checkpoint_activations
from rank_tasks import LENGTH, TASKS, VOCABULARY


class _Operations(TorchDispatchMode):
    """Counts the operations within it, and watches the storages of their results without holding them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter()
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.counts[func._schema.name] += 1
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self._seen[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return out

    def num_bytes_alive(self) -> int:
        return sum(size for reference, size in self._seen.values() if not reference.expired())


def gpt():
    task = TASKS["text"]
    torch.manual_seed(3)
    return task.build_model(**task.defaults)


def resnet():
    class Bottleneck(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 3, padding=1)
            self.norm = nn.GroupNorm(2, 8)
            self.dropout = nn.Dropout(0.2)

        def forward(self, x):
            return x + self.dropout(torch.relu(self.norm(self.conv(x))))

    torch.manual_seed(3)
    return nn.Sequential(*(Bottleneck() for _ in range(4)))


def loss_of(model):
    generator = torch.Generator().manual_seed(5)
    if isinstance(model, nn.Sequential):
        return model(torch.randn(2, 8, 6, 6, generator=generator)).square().sum()
    tokens = torch.randint(VOCABULARY, (4, LENGTH + 1), generator=generator)
    return model(tokens[:, :-1], tokens[:, 1:]).sum()


def gradients_and_bytes(model):
    """All gradients, and the bytes that stand between the forward and the backward."""
    torch.manual_seed(11)
    with _Operations() as operations:
        loss = loss_of(model)
    held = operations.num_bytes_alive()
    loss.backward()
    return [parameter.grad for parameter in model.parameters()], held


@pytest.mark.parametrize("build", [gpt, resnet])
def test_gradients_are_the_same_to_the_bit_and_memory_is_less(build):
    gradients, held = {}, {}
    for how in (0, "selective", 2, 1):
        model = copy.deepcopy(build())
        checkpoint_activations(blocks_of(model), every=how)
        gradients[how], held[how] = gradients_and_bytes(model)
        for ours, expected in zip(gradients[how], gradients[0], strict=True):
            assert torch.equal(ours, expected), how
    assert held[0] > held["selective"] > held[1]
    assert held[0] > held[2] > held[1]


def test_selective_computes_no_product_twice():
    counts = {}
    for how in (0, "selective", 1):
        model = gpt()
        checkpoint_activations(blocks_of(model), every=how)
        with _Operations() as operations:
            loss_of(model).backward()
        counts[how] = operations.counts["aten::mm"]
    assert counts["selective"] == counts[0] < counts[1]
