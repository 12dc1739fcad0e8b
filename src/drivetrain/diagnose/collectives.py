"""What NCCL's watchdogs of several ranks say together: were the ranks in the same collective?"""

from __future__ import annotations

from drivetrain.diagnose.collect import Findings, Hit
from drivetrain.diagnose.rules import Rule

WATCHDOG_RULE = "nccl-watchdog-timeout"
GROUP_RULE = "nccl-watchdog-group"
MISMATCH_RULE = "collectives-differ"


def compare_timeouts(findings: Findings) -> tuple[Rule, tuple[Hit, ...]] | None:
    """The rule `MISMATCH_RULE` with two lines that contradict each other, or None where none do.

    Only ranks that timed out at the same number of the same process group can be compared: a rank that stands
    at another number may belong to another group, or have been let through by a broadcast. Sizes may differ
    by right where each rank contributes its own (all_gather, reduce_scatter), so they are compared for
    all-reduce alone.
    """
    if WATCHDOG_RULE not in findings.book.by_id or MISMATCH_RULE not in findings.book.by_id:
        return None
    if len({hit.values.get("group") for hit in findings.hits(GROUP_RULE)}) > 1:
        return None  # numbers of different groups have nothing to do with each other
    seen: dict[float, Hit] = {}
    for hit in findings.hits(WATCHDOG_RULE):
        number = hit.values.get("seq")
        if not isinstance(number, float) or hit.rank is None:
            continue
        other = seen.setdefault(number, hit)
        if other.rank != hit.rank and _contradict(other, hit):
            return findings.book.by_id[MISMATCH_RULE], (other, hit)
    return None


def _contradict(one: Hit, other: Hit) -> bool:
    if one.values.get("op") != other.values.get("op"):
        return True
    is_all_reduce = str(one.values.get("op")).upper() == "ALLREDUCE"
    return is_all_reduce and one.values.get("numel") != other.values.get("numel")
