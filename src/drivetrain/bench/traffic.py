"""Bytes that a rank sends in one step: counted from a record of collectives, and by formula. Without torch.

One convention for both, that of ring algorithms (Patarasu and Yuan 2009, "Bandwidth optimal all-reduce
algorithms for clusters of workstations"): of a tensor of S bytes, whole, over n ranks, each rank sends

    all-reduce                      2 (n − 1)/n S
    all-gather, reduce-scatter        (n − 1)/n S
    broadcast                         (n − 1)/n S
    send                                        S

Other algorithms (trees, NVLink's in-switch sums) send otherwise; the convention makes strategies comparable.

What the formulas leave out, as it is small: the norm for clipping (4 bytes an axis), and the exchange of
maxima and sums by a head that is cut by vocabulary (some 12 bytes a token).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from drivetrain.spec.layout import Layout
from drivetrain.spec.unknown import Unknown

_BYTES = {
    "Double": 8,
    "Float": 4,
    "Half": 2,
    "BFloat16": 2,
    "Long": 8,
    "Int": 4,
    "Short": 2,
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
}

FP32 = 4


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One entry of a record.

    Attributes:
        kind: all_reduce, all_gather, reduce_scatter, broadcast or send; others as recorded.
        num_bytes: of the tensor, whole (of an all-gather: its result).
        group: the process group's name.
        group_size: its ranks.
    """

    kind: str
    num_bytes: int
    group: str
    group_size: int

    @property
    def sent_bytes(self) -> float:
        """By the convention above.

        Raises:
            ValueError: the kind has none there.
        """
        return sent_bytes(self.kind, self.num_bytes, self.group_size)


def sent_bytes(kind: str, num_bytes: float, group_size: int) -> float:
    """What each of `group_size` ranks sends of a tensor of `num_bytes`, see the top."""
    ring = (group_size - 1) / group_size * num_bytes
    by_kind = {
        "all_reduce": 2 * ring,
        "all_gather": ring,
        "reduce_scatter": ring,
        "broadcast": ring,
        "send": float(num_bytes),
    }
    if kind not in by_kind:
        raise ValueError(f"no convention for a collective called {kind!r}")
    return by_kind[kind]


# How flight recorders call them, after the backend's name: gloo and NCCL differ, and so do torch's versions.
_KINDS = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "all_gather": "all_gather",
    "_all_gather_base": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
    "send": "send",
}
_SILENT = frozenset({"recv", "coalesced", "barrier"})
"""Entries that send nothing, or only stand around others."""


def parse_record(entries: Iterable[Mapping[str, object]], group_sizes: Mapping[str, int]) -> list[Collective]:
    """The collectives of a flight recorder's JSON, in its order.

    Args:
        entries: its `entries`, of one rank.
        group_sizes: ranks of each process group by name.

    Raises:
        ValueError: an entry that cannot be understood: what is not counted must not look like silence.
    """
    return [found for entry in entries if (found := _parse(entry, group_sizes)) is not None]


def _parse(entry: Mapping[str, object], group_sizes: Mapping[str, int]) -> Collective | None:
    # "gloo:all_reduce", "nccl:_all_gather_base", "nccl:send 0->1"
    name = str(entry["profiling_name"]).rpartition(":")[2].split(" ")[0]
    if name in _SILENT:
        return None
    if name not in _KINDS:
        raise ValueError(f"a collective called {entry['profiling_name']!r} in the record")
    kind = _KINDS[name]
    side = "output" if kind == "all_gather" else "input"
    sizes, types = entry[f"{side}_sizes"], entry[f"{side}_dtypes"]
    group = entry["process_group"]
    if not isinstance(sizes, Sequence) or not isinstance(types, Sequence) or not isinstance(group, Sequence):
        raise ValueError(f"an entry without sizes, types or group: {entry}")
    # Some backends give one type for all tensors.
    types = [types[min(at, len(types) - 1)] for at in range(len(sizes))]
    num_bytes = sum(math.prod(size) * _BYTES[str(kind_)] for size, kind_ in zip(sizes, types, strict=True))
    return Collective(
        kind=kind, num_bytes=num_bytes, group=str(group[0]), group_size=group_sizes[str(group[0])]
    )


def total_by_kind(collectives: Iterable[Collective]) -> dict[str, float]:
    """Bytes sent by kind of collective."""
    totals: dict[str, float] = {}
    for item in collectives:
        totals[item.kind] = totals.get(item.kind, 0.0) + item.sent_bytes
    return totals


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a rank does in one step, as far as it makes traffic.

    Attributes:
        micro_batches: a step.
        micro_batch: samples of the largest one.
        blocks: shapes of the trained parameters that are gathered together, by group, as the ranks of a data
            axis see them (a tensor-parallel rank's part); one group where nothing is sharded.
        rest: those of the outermost module, which are gathered for all the step of a micro-batch.
        tied: elements of a matrix that another stage of the pipeline has too.
        reshards: whether blocks, and whether the outermost module, are gathered anew for the backward.
        gathered_bytes: of an element of a gathered copy: 4 in fp32, 2 in bf16.
        activation_bytes: of an element of what tensor-parallel ranks sum.
        activations: elements of one sample between two blocks (tokens × width of a transformer); Unknown for
            other models.
        num_blocks: that the rank computes.
        stages_per_rank, folds: of a pipeline; one that folds has its first and its last stage on one rank.
        has_reduce_scatter: whether the backend has one. torch's gloo has not, and sums everything on all
            ranks instead.
    """

    micro_batches: int
    micro_batch: int
    blocks: tuple[tuple[tuple[int, ...], ...], ...]
    rest: tuple[tuple[int, ...], ...]
    tied: int = 0
    reshards: tuple[bool, bool] = (True, False)
    gathered_bytes: int = FP32
    activation_bytes: int = FP32
    activations: int | Unknown = 0
    num_blocks: int = 0
    stages_per_rank: int = 1
    folds: bool = False
    has_reduce_scatter: bool = True

    @property
    def num_trained(self) -> int:
        return sum(math.prod(shape) for shape in (*(s for block in self.blocks for s in block), *self.rest))


def expected_bytes(layout: Layout, rank: int, work: Work) -> float | Unknown:
    """What `rank` sends in one step by formula; Unknown where there is none."""
    if layout.strategy == "data_parallel":
        return Unknown("copies between GPUs of one process, which no record of collectives sees")
    if layout.strategy == "pipeline" and layout.dp_shard > 1:
        return Unknown("no formula for the shards of a pipeline's weights")
    parts = [
        _tensor(layout, work),
        _pipeline(layout, rank, work),
        _data(layout, work),
    ]
    for part in parts:
        if isinstance(part, Unknown):
            return part
    return sum(part for part in parts if not isinstance(part, Unknown))


def _data(layout: Layout, work: Work) -> float:
    """Weights and gradients."""
    if layout.num_data_ranks == 1:
        return 0.0
    is_sharded = layout.strategy in ("fsdp", "tensor")
    return _shards(layout, work) if is_sharded else _replicas(layout.num_data_ranks, work)


def _replicas(num_ranks: int, work: Work) -> float:
    """Li et al. 2020 (PyTorch Distributed, 2006.15704): one all-reduce of all gradients a step, in fp32, in
    buckets whose number changes nothing."""
    return sent_bytes("all_reduce", FP32 * work.num_trained, num_ranks)


def _shards(layout: Layout, work: Work) -> float:
    """Rajbhandari et al. 2020 (ZeRO, 1910.02054, 7.2), Zhao et al. 2023 (FSDP, 2304.11277): each micro-batch
    gathers the weights for its forward and, where they were dropped, for its backward; gradients are
    scattered once a step, in fp32, and in hybrid sharding summed over the copies of the shard."""
    size, copies = layout.dp_shard, layout.dp_replicate
    total = 0.0
    for group, reshards in (
        *((block, work.reshards[0]) for block in work.blocks),
        (work.rest, work.reshards[1]),
    ):
        # Rows are dealt in equal numbers, so that some ranks hold padding.
        elements = sum(_padded(shape, size) for shape in group)
        gathers = (2 if reshards else 1) * work.micro_batches
        total += gathers * sent_bytes("all_gather", work.gathered_bytes * elements, size)
        reduction = "reduce_scatter" if work.has_reduce_scatter else "all_reduce"
        total += sent_bytes(reduction, FP32 * elements, size)
        total += sent_bytes("all_reduce", FP32 * elements / size, copies)
    return total


def _padded(shape: tuple[int, ...], num_ranks: int) -> int:
    rows = shape[0] if shape else 1
    return -(-rows // num_ranks) * num_ranks * math.prod(shape[1:])


def _tensor(layout: Layout, work: Work) -> float | Unknown:
    """Shoeybi et al. 2019 (Megatron-LM, 1909.08053, 3): each layer sums its activations twice in the forward
    and twice in the backward; embedding and head, cut by vocabulary, once each."""
    if layout.tp == 1:
        return 0.0
    if isinstance(work.activations, Unknown):
        return work.activations
    samples = work.micro_batches * work.micro_batch
    sums = 4 * work.num_blocks * work.activation_bytes + 2 * FP32
    return sent_bytes("all_reduce", samples * work.activations * sums, layout.tp)


def _pipeline(layout: Layout, rank: int, work: Work) -> float | Unknown:
    """Huang et al. 2018 (GPipe, 1811.06965): each boundary between stages passes every micro-batch's
    activations on and their gradients back. Micro-batches are padded to the size of the largest."""
    if layout.pp == 1:
        return 0.0
    if isinstance(work.activations, Unknown):
        return work.activations
    place = layout.place(rank)["pp"]
    # Each stage sends both ways. The first and the last have one neighbour; where the pipeline folds they are
    # on one rank, and at the fold two neighbours are.
    is_end = (place == 0) + (place == layout.pp - 1)
    boundaries = 2 * work.stages_per_rank - is_end * (2 if work.folds else 1)
    passed = FP32 * work.micro_batches * work.micro_batch * work.activations
    return boundaries * sent_bytes("send", passed, layout.pp) + sent_bytes("all_reduce", FP32 * work.tied, 2)
