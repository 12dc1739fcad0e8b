"""The arithmetic of batches: the user fixes the global batch; everything else follows."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.spec.errors import InputError


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """How one global batch is shared among data ranks and cut into micro-batches.

    Every rank runs `accumulation` micro-batches a step, so that collectives inside a micro-batch (FSDP,
    tensor parallel) meet. Shares differ by at most one sample, and so do a rank's micro-batches.

    Attributes:
        global_batch: samples a step, over all ranks.
        num_data_ranks: ranks that see different samples.
        micro_batch: the most samples that any rank runs at once.
        accumulation: micro-batches a step.
    """

    global_batch: int
    num_data_ranks: int
    micro_batch: int
    accumulation: int

    def share(self, data_rank: int) -> range:
        """Offsets within the global batch of `data_rank`: consecutive ranks, consecutive offsets."""
        return _part(range(self.global_batch), self.num_data_ranks, data_rank)

    def micro_slices(self, data_rank: int) -> tuple[range, ...]:
        """The share of `data_rank`, cut into `accumulation` pieces. A piece is empty only when the share is
        smaller than the accumulation (micro-batch 1 and a share one smaller than another rank's)."""
        share = self.share(data_rank)
        return tuple(_part(share, self.accumulation, index) for index in range(self.accumulation))

    def describe(self) -> str:
        """The three numbers that are always printed."""
        low = self.global_batch // self.num_data_ranks
        per_rank = f"{low}" if self.global_batch % self.num_data_ranks == 0 else f"{low} or {low + 1}"
        return (
            f"micro-batch {self.micro_batch} × {self.accumulation} accumulated → {per_rank} per rank"
            f" × {self.num_data_ranks} ranks = global batch {self.global_batch}"
        )


MICRO_BATCHES_A_STAGE = 4
"""Of a pipeline, unless told otherwise: with M micro-batches on S stages a stage stands idle for
(S − 1) / (M + S − 1) of the time, which Huang et al. (2018, GPipe, 1811.06965) found small from M = 4 S."""


def plan_batches(
    *, global_batch: int, num_data_ranks: int, micro_batch: int | None = None, num_stages: int = 1
) -> BatchPlan:
    """Shares `global_batch` among `num_data_ranks`.

    Args:
        micro_batch: the most samples a rank runs at once; None runs each rank's share at once, and in a
            pipeline of `num_stages` stages in that many micro-batches a stage, as far as there are samples.

    Raises:
        InputError: a rank would get no sample, or a number is not positive.
    """
    if global_batch < 1:
        raise InputError(f"global batch {global_batch}", "it must be at least 1", "set --global-batch")
    if micro_batch is not None and micro_batch < 1:
        raise InputError(f"micro-batch {micro_batch}", "it must be at least 1", "set --micro-batch, or auto")
    if num_data_ranks > global_batch:
        raise InputError(
            f"global batch {global_batch} on {num_data_ranks} ranks",
            f"{num_data_ranks - global_batch} ranks would get no sample",
            f"use at most {global_batch} ranks, or --global-batch {num_data_ranks} or more",
        )
    largest_share = -(-global_batch // num_data_ranks)
    if micro_batch is None and num_stages > 1:
        micro_batch = -(-largest_share // (MICRO_BATCHES_A_STAGE * num_stages))
    limit = min(micro_batch or largest_share, largest_share)
    accumulation = -(-largest_share // limit)
    return BatchPlan(
        global_batch=global_batch,
        num_data_ranks=num_data_ranks,
        micro_batch=-(-largest_share // accumulation),
        accumulation=accumulation,
    )


def _part(whole: range, num_parts: int, index: int) -> range:
    """Part `index` of `whole` cut into `num_parts` consecutive parts whose lengths differ by at most one."""
    base, extra = divmod(len(whole), num_parts)
    start = whole.start + index * base + min(index, extra)
    return range(start, start + base + (1 if index < extra else 0))
