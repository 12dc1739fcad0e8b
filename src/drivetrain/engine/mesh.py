"""The layout as torch's device mesh, whose dims are called as the layout's axes are."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from drivetrain.spec.layout import AXES, Layout

DATA_AXES = ("dp_replicate", "dp_shard")


def build_mesh(layout: Layout, device: torch.device) -> DeviceMesh:
    """A mesh of all ranks: a dim for each axis of more than one rank, and always one for `dp_shard`.

    Called by all ranks, in the same order: it makes process groups.
    """
    # DTensor remembers what operations give, with the mesh: an equal one of an earlier run in this process,
    # whose process groups are gone, would come back.
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
    axes = [axis for axis in AXES if axis == "dp_shard" or getattr(layout, axis) > 1]
    degrees = tuple(getattr(layout, axis) for axis in axes)
    return init_device_mesh(device.type, degrees, mesh_dim_names=tuple(axes))


def has_axis(mesh: DeviceMesh, axis: str) -> bool:
    return axis in (mesh.mesh_dim_names or ())
