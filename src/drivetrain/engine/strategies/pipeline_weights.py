"""The weights of a pipeline's rank: brought from rank 0, sharded over data ranks between steps, and their
gradients summed over all who have a part in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from drivetrain.engine.state import local_part
from drivetrain.spec.errors import InputError

_BUCKET_BYTES = 25 * 2**20  # DDP's default: large enough for bandwidth, small enough to copy


@dataclass(frozen=True)
class Slot:
    """Where a module has a parameter or buffer."""

    owner: nn.Module
    attribute: str


Facts = Mapping[str, Tensor]
"""Shapes and types of a whole model's parameters and buffers, by name: tensors on the meta device."""
BufferSlots = Mapping[str, list[Slot]]


def slots_of(module: nn.Module, aliases: Mapping[str, list[str]], *, buffers: bool) -> dict[str, list[Slot]]:
    """Where `module` has each tensor of `aliases`, by the first of its names; without those it lacks."""
    slots: dict[str, list[Slot]] = {}
    for name, names in aliases.items():
        for alias in names:
            parent, _, attribute = alias.rpartition(".")
            owner = _submodule(module, parent)
            held = (owner._buffers if buffers else owner._parameters) if owner is not None else {}
            if owner is not None and held.get(attribute) is not None:
                slots.setdefault(name, []).append(Slot(owner, attribute))
    return slots


def buffer_aliases(module: nn.Module) -> dict[str, list[str]]:
    """The names of each buffer, by the first of them: several where modules share it."""
    first: dict[int, str] = {}
    names: dict[str, list[str]] = {}
    for name, buffer in module.named_buffers(remove_duplicate=False):
        names.setdefault(first.setdefault(id(buffer), name), []).append(name)
    return names


def _submodule(module: nn.Module, name: str) -> nn.Module | None:
    owner: nn.Module | None = module
    for part in name.split(".") if name else ():
        owner = owner._modules.get(part) if owner is not None else None
    return owner


class Weights:
    """The parameters of one rank's stages.

    With a mesh, each rank of it keeps a part of every parameter, as a DTensor, and the optimizer and the
    checkpoint see these. Within `gathered()` the modules have them whole: once a step, since a pipeline's
    stage computes again and again in a step, in an order in which dropping them in between repays nothing.

    fully_shard is not used: it reduces gradients from hooks on the backward, which the split backward of
    zero-bubble schedules goes past; and it refuses a weight that two stages of one rank share.

    Args:
        slots: the places of each parameter by its name.
        pairs: the groups of ranks with other stages that have a parameter too, by its name.
        replicas: the ranks with the same stages.
        mesh: those ranks by data axes, the last of which shards; None: every rank has the whole.
    """

    def __init__(
        self,
        slots: dict[str, list[Slot]],
        *,
        pairs: Mapping[str, dist.ProcessGroup],
        replicas: dist.ProcessGroup,
        mesh: DeviceMesh | None,
    ) -> None:
        self._slots = slots
        self._pairs = pairs
        self._replicas = replicas
        self._mesh = mesh
        self._is_gathered = False
        self._unused: set[str] | None = None  # settled in the first step

    def __contains__(self, name: object) -> bool:
        return name in self._slots

    @torch.no_grad()
    def fill(self, name: str, whole: Tensor) -> None:
        """Gives parameter `name` its values: the whole tensor, of which this rank keeps its part."""
        old = self.parameter(name)
        mine = whole
        if self._mesh is not None:
            # src_data_rank None: all ranks have the values, so nothing is sent.
            mine = distribute_tensor(whole, self._mesh, self._placements(whole), src_data_rank=None)
        self._put(name, nn.Parameter(mine, requires_grad=old.requires_grad))

    def parameter(self, name: str) -> nn.Parameter:
        slot = self._slots[name][0]
        parameter = slot.owner._parameters[slot.attribute]
        assert parameter is not None
        return parameter

    def _put(self, name: str, parameter: nn.Parameter) -> None:
        for slot in self._slots[name]:
            slot.owner._parameters[slot.attribute] = parameter

    def _placements(self, tensor: Tensor) -> list[Placement]:
        assert self._mesh is not None
        last: Placement = Shard(0) if tensor.ndim else Replicate()
        return [Replicate()] * (self._mesh.ndim - 1) + [last]

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Within it modules have their whole weights. Called by all replicas; may be nested."""
        if self._mesh is None or self._is_gathered:
            yield
            return
        shards = {name: self.parameter(name) for name in self._slots}
        with torch.no_grad():
            wholes = {name: self._whole(shard) for name, shard in shards.items()}
        for name, whole in wholes.items():
            self._put(name, whole)
        self._is_gathered = True
        try:
            yield
        finally:
            self._is_gathered = False
            for name, shard in shards.items():
                self._put(name, shard)

    @staticmethod
    def _whole(shard: nn.Parameter) -> nn.Parameter:
        assert isinstance(shard, DTensor)
        return nn.Parameter(shard.full_tensor(), requires_grad=shard.requires_grad)

    # -- gradients ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def reduced_gradients(self) -> dict[str, Tensor]:
        """The gradients by name, averaged over data ranks, those of tied weights summed over their stages;
        each as this rank keeps its parameter. Called by all ranks once a step, within `gathered`, after the
        backward of all micro-batches."""
        gradients = self._gradients()
        if self._mesh is not None:
            gradients = {name: self._share(gradient) for name, gradient in gradients.items()}
        elif dist.get_world_size(self._replicas) > 1:
            _average(list(gradients.values()), self._replicas)
        for name, group in self._pairs.items():
            if name in gradients:
                dist.all_reduce(local_part(gradients[name]), group=group)
        return gradients

    def set_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Gives the parameters what `reduced_gradients` gave, outside `gathered`."""
        for name, gradient in gradients.items():
            self.parameter(name).grad = gradient

    def _gradients(self) -> dict[str, Tensor]:
        """Those that some replica has, zero where this rank has none: all must reduce the same ones."""
        trained = {name: p for name in self._slots if (p := self.parameter(name)).requires_grad}
        if self._unused is None:
            self._unused = self._find_unused(trained) - self._pairs.keys()
        found = {}
        for name, parameter in trained.items():
            if name not in self._unused:
                found[name] = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            elif parameter.grad is not None:
                raise InputError(
                    "strategy pipeline",
                    f"{name} had no gradient in the first step and has one now",
                    "use every parameter in every step, or strategy ddp",
                )
        return found

    def _find_unused(self, trained: Mapping[str, nn.Parameter]) -> set[str]:
        """Names of parameters without a gradient on every replica."""
        device = next(iter(trained.values())).device
        missing = torch.tensor([p.grad is None for p in trained.values()], dtype=torch.int32, device=device)
        dist.all_reduce(missing, op=dist.ReduceOp.MIN, group=self._replicas)
        return {name for name, is_missing in zip(trained, missing.tolist(), strict=True) if is_missing}

    def _share(self, gradient: Tensor) -> Tensor:
        """This rank's part of the mean of a gradient over data ranks."""
        mesh = self._mesh
        assert mesh is not None
        summands = DTensor.from_local(gradient, mesh, [Partial()] * mesh.ndim, run_check=False)
        total = summands.redistribute(placements=self._placements(gradient))
        total.to_local().div_(mesh.size())
        return total


def _average(gradients: list[Tensor], group: dist.ProcessGroup) -> None:
    """Replaces each gradient by its mean over `group`, many in one message."""
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat, group=group)
        flat /= dist.get_world_size(group)
        for gradient, mean in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
            gradient.copy_(mean.view_as(gradient))


def _buckets(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """`tensors` in order, in groups of one type and about `_BUCKET_BYTES`."""
    bucket: list[Tensor] = []
    num_bytes = 0
    for tensor in tensors:
        if bucket and (num_bytes >= _BUCKET_BYTES or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, num_bytes = [], 0
        bucket.append(tensor)
        num_bytes += tensor.numel() * tensor.element_size()
    if bucket:
        yield bucket


@torch.no_grad()
def bring_weights(
    weights: Weights, slots: BufferSlots, facts: Facts, whole: nn.Module | None, device: torch.device
) -> None:
    """Gives a rank's skeleton its parameters and buffers from rank 0's `whole`, one tensor at a time, so that
    no other rank ever holds a whole model. Called by all ranks."""
    sources = {}
    if whole is not None:
        sources = {**dict(whole.named_parameters()), **dict(whole.named_buffers())}
    for name, fact in facts.items():
        tensor = torch.empty(fact.shape, dtype=fact.dtype, device=device)
        if whole is not None:
            tensor.copy_(sources[name])
        dist.broadcast(tensor, src=0)
        if name in weights:
            weights.fill(name, tensor)
        for slot in slots.get(name, ()):
            slot.owner._buffers[slot.attribute] = tensor
