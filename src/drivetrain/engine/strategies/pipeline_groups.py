"""The groups of ranks that a pipeline talks in."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from drivetrain.engine.mesh import DATA_AXES, build_mesh, has_axis
from drivetrain.engine.world import World
from drivetrain.spec.layout import AXES, Layout


@dataclass(frozen=True, kw_only=True)
class Groups:
    """This rank's groups.

    Attributes:
        stages: the ranks of its pipeline, by place.
        hosts: the same ranks, over gloo, for words about tensors.
        replicas: the ranks that hold the same stages and see other samples, itself among them.
        mesh: the replicas by data axes, where weights are sharded over them; else None.
    """

    stages: dist.ProcessGroup
    hosts: dist.ProcessGroup
    replicas: dist.ProcessGroup
    mesh: DeviceMesh | None


def open_groups(layout: Layout, world: World, timeout_s: float) -> Groups:
    """Called by all ranks, in the same order."""
    mesh = build_mesh(layout, world.device)
    timeout = timedelta(seconds=timeout_s)
    stages = mesh.get_group("pp") if has_axis(mesh, "pp") else _group(layout, world.rank, ("pp",), timeout)
    on_cpu = world.device.type == "cpu"
    hosts = stages if on_cpu else _group(layout, world.rank, ("pp",), timeout, backend="gloo")
    if layout.dp_replicate == 1:
        replicas = mesh.get_group("dp_shard")
    else:
        replicas = _group(layout, world.rank, DATA_AXES, timeout)
    data_axes = tuple(axis for axis in DATA_AXES if has_axis(mesh, axis))
    return Groups(
        stages=stages,
        hosts=hosts,
        replicas=replicas,
        mesh=mesh[data_axes] if layout.dp_shard > 1 else None,
    )


def group_of_places(
    layout: Layout, world: World, places: Iterable[int], timeout_s: float
) -> dist.ProcessGroup | None:
    """The ranks of this rank's pipeline at `places`; None where this rank is at none of them. Called by all
    ranks."""
    wanted = set(places)
    timeout = timedelta(seconds=timeout_s)
    return _one_of(
        ([rank for rank in ranks if layout.place(rank)["pp"] in wanted] for ranks in _rows(layout, ("pp",))),
        world.rank,
        timeout,
    )


def _group(
    layout: Layout, rank: int, axes: tuple[str, ...], timeout: timedelta, backend: str | None = None
) -> dist.ProcessGroup:
    """This rank's group of those that differ from it in `axes` alone."""
    group = _one_of(_rows(layout, axes), rank, timeout, backend)
    assert group is not None
    return group


def _one_of(
    rows: Iterable[list[int]], rank: int, timeout: timedelta, backend: str | None = None
) -> dist.ProcessGroup | None:
    """Makes a group of each row, as all ranks must, and gives that of `rank`."""
    mine = None
    for row in rows:
        group = dist.new_group(row, timeout=timeout, backend=backend)
        if rank in row:
            assert isinstance(group, dist.ProcessGroup)
            mine = group
    return mine


def _rows(layout: Layout, axes: tuple[str, ...]) -> list[list[int]]:
    """The ranks in groups that differ in `axes` alone, each in the order of ranks."""

    def elsewhere(rank: int) -> tuple[int, ...]:
        return tuple(at for axis, at in layout.place(rank).items() if axis not in axes)

    assert set(axes) <= set(AXES)
    ranks = sorted(range(layout.world_size), key=lambda rank: (elsewhere(rank), rank))
    return [list(row) for _, row in itertools.groupby(ranks, key=elsewhere)]
