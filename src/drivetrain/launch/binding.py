"""Which GPU, CPUs and memory each local rank gets: the user's visible GPUs, reordered once for all ranks.

The list is the same for every rank, so `set_device(local_rank)` stays right and peers see each other. NICs:
NCCL plans the same rings on every rank only if all of them see the same NICs, so the variable that names them
is the machine's, not the rank's; within it NCCL takes the nearest for each GPU, and so do the lines here.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.hardware.gpus import VisibleGpus, visible_gpus
from drivetrain.hardware.topology.graph import GpuNode, Topology, write_ranges
from drivetrain.hardware.topology.nic_choice import choose_nics
from drivetrain.hardware.topology.nvml import NvmlUnavailableError, read_nvml
from drivetrain.hardware.topology.pci import active_nics
from drivetrain.hardware.topology.placement import best_sets
from drivetrain.hardware.topology.rank_layout import keep_or_order
from drivetrain.launch.pinning import nodes_to_prefer
from drivetrain.spec.job import Pinning

VISIBLE = "CUDA_VISIBLE_DEVICES"
NICS = "NCCL_IB_HCA"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What binding rests on.

    Attributes:
        cpus: that this process may use.
        nics: active ports' devices and their link layer ("InfiniBand", "Ethernet").
        memory_nodes: the GPUs' NUMA nodes that the kernel lets a process prefer.
    """

    visible: VisibleGpus
    topology: Topology
    cpus: frozenset[int]
    nics: Mapping[str, str]
    memory_nodes: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Binding:
    """`environment` is for every rank; `pinnings` by local rank, empty where none is; `lines` say it."""

    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    pinnings: tuple[Pinning, ...] = ()
    lines: tuple[str, ...] = ()


def bind(
    num_ranks: int,
    environ: Mapping[str, str],
    *,
    num_nodes: int,
    one_gpu_each: bool,
    nvml: Any = None,
    root: Path = Path("/"),
) -> Binding:
    """The binding of this machine's ranks; one that binds nothing where there are no GPUs.

    Args:
        environ: what the ranks will have, the user's own variables included.
        one_gpu_each: whether a rank is known to use one GPU. If not, and there are more GPUs than ranks, a
            rank may use several, and its CPUs are left alone.
        nvml, root: for tests.
    """
    visible = visible_gpus(environ, nvml=nvml)
    if visible.count == 0:
        return Binding()
    if not isinstance(visible.count, int):
        return Binding(lines=(f"ranks are not bound to GPUs: {visible.reason}",))
    try:
        topology = read_nvml(nvml, root)
    except NvmlUnavailableError as error:
        return Binding(lines=(f"ranks are not bound to GPUs: {error}",))
    machine = Machine(
        visible=visible,
        topology=topology,
        cpus=frozenset(os.sched_getaffinity(0)),
        nics=active_nics(root / "sys"),
        memory_nodes=nodes_to_prefer(_numa_nodes(topology)),
    )
    return plan_binding(machine, num_ranks, environ, num_nodes=num_nodes, one_gpu_each=one_gpu_each)


def plan_binding(
    machine: Machine, num_ranks: int, environ: Mapping[str, str], *, num_nodes: int, one_gpu_each: bool
) -> Binding:
    """Pure; see `bind`."""
    by_uuid = {gpu.uuid: gpu.index for gpu in machine.topology.gpus if isinstance(gpu.uuid, str)}
    shown = [by_uuid.get(uuid) for uuid in machine.visible.uuids]
    seen = [index for index in shown if index is not None]
    if len(seen) < len(shown):
        return Binding(lines=("ranks are not bound to GPUs: NVML's wiring lacks some of the visible ones",))
    if num_ranks > len(seen):
        return Binding(
            lines=(f"ranks are not bound to GPUs: {num_ranks} ranks share {len(seen)} visible GPUs",)
        )
    order = _order(machine.topology, seen, num_ranks)
    environment = {}
    lines = []
    if order != seen or VISIBLE not in environ:
        environment[VISIBLE] = ",".join(str(machine.topology.gpu(index).uuid) for index in order)
    if order != seen:
        lines.append(f"{VISIBLE} is reordered so that neighbouring ranks are best linked")
    gpus = [machine.topology.gpu(index) for index in order[:num_ranks]]
    pinnings: tuple[Pinning, ...] = ()
    if one_gpu_each or num_ranks == len(seen):
        pinnings = tuple(_pinning(machine, gpu) for gpu in gpus)
    else:
        lines.append(f"CPUs are not bound: a rank may use several of the {len(seen)} visible GPUs")
    nics = _nics(machine, order[:num_ranks], environ, num_nodes)
    lines += [*_rank_lines(gpus, pinnings, nics.nearest), *nics.lines, "(--no-bind: none of this)"]
    return Binding(
        environment={**environment, **nics.environment},
        pinnings=pinnings if any(pinning != Pinning() for pinning in pinnings) else (),
        lines=tuple(lines),
    )


def _rank_lines(
    gpus: Sequence[GpuNode], pinnings: Sequence[Pinning], nearest_nics: Mapping[int, str]
) -> list[str]:
    lines = []
    for rank, gpu in enumerate(gpus):
        parts = [
            f"GPU{gpu.index} ({str(gpu.uuid)[:12]})",
            *(_pinning_words(pinnings[rank]) if pinnings else ()),
        ]
        if gpu.index in nearest_nics:
            parts.append(f"nearest NIC {nearest_nics[gpu.index]}")
        lines.append(f"local rank {rank}: {', '.join(parts)}")
    return lines


def _order(topology: Topology, seen: list[int], num_ranks: int) -> list[int]:
    """The best of the visible GPUs, neighbours best linked; then the rest, for scripts that use more."""
    best = best_sets(topology, num_ranks, among=seen)
    chosen = seen[:num_ranks]
    if best is not None and best.sets and tuple(sorted(chosen)) not in best.sets:
        kept = set(best.sets[0])
        chosen = [index for index in seen if index in kept]
    first = keep_or_order(topology, chosen, _factors(num_ranks))
    return [*first, *(index for index in seen if index not in first)]


def _factors(number: int) -> list[int]:
    """8 → 2, 2, 2: a group of any such size that neighbours form is well linked."""
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


def _numa_nodes(topology: Topology) -> frozenset[int]:
    nodes = (gpu.numa for gpu in topology.gpus if isinstance(gpu.numa, frozenset))
    return frozenset(itertools.chain.from_iterable(nodes))


def _pinning(machine: Machine, gpu: GpuNode) -> Pinning:
    """The GPU's CPUs as far as this process may use them, and its node; nothing where that is everything."""
    cpus = gpu.cpus & machine.cpus if isinstance(gpu.cpus, frozenset) else frozenset[int]()
    is_part = bool(cpus) and cpus != machine.cpus
    numa = gpu.numa & machine.memory_nodes if isinstance(gpu.numa, frozenset) else frozenset[int]()
    has_node = cpus and len(numa) == 1 and (is_part or len(_numa_nodes(machine.topology)) > 1)
    return Pinning(
        cpus=tuple(sorted(cpus)) if is_part else (), numa_node=next(iter(numa)) if has_node else None
    )


def _pinning_words(pinning: Pinning) -> list[str]:
    words = [f"CPUs {write_ranges(frozenset(pinning.cpus))}"] if pinning.cpus else []
    if pinning.numa_node is not None:
        words.append(f"memory of node {pinning.numa_node} first")
    return words


@dataclass(frozen=True, kw_only=True)
class _NicPlan:
    """`nearest`: GPU index → its NIC's name."""

    nearest: dict[int, str] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    lines: tuple[str, ...] = ()


def _nics(machine: Machine, gpus: list[int], environ: Mapping[str, str], num_nodes: int) -> _NicPlan:
    """The nearest active NIC of each GPU, and on several machines a list that leaves out NICs that are
    nearest to none, such as those of storage. Not where link layers are mixed: which one the job's network
    is, is not for us to say."""
    active = tuple(nic for nic in machine.topology.nics if nic.name in machine.nics)
    if num_nodes < 2 or not active:
        return _NicPlan()
    topology = dataclasses.replace(machine.topology, nics=active)
    nearest = {gpu: nic.name for gpu, nic in choose_nics(topology, gpus).items() if nic is not None}
    if NICS in environ:
        return _NicPlan(nearest=nearest, lines=(f"{NICS}={environ[NICS]} is yours, and kept",))
    near = sorted({nic.name for gpu in gpus for nic in topology.nearest_nics(gpu)[0]})
    layers = {machine.nics[nic.name] for nic in active}
    if len(nearest) < len(gpus) or len(near) == len(active) or len(layers) > 1:
        return _NicPlan(nearest=nearest)
    # "=" makes NCCL compare whole names: mlx5_1 would else match mlx5_10 too.
    value = "=" + ",".join(near)
    line = f"{NICS}={value}: the active NICs nearest to this job's GPUs, {len(near)} of {len(active)}"
    return _NicPlan(nearest=nearest, environment={NICS: value}, lines=(line,))
