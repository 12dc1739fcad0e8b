"""All checks, in the order in which areas are shown."""

from __future__ import annotations

from collections.abc import Iterable

from drivetrain.doctor.checks import (
    driver,
    gpu_health,
    gpu_settings,
    host,
    libraries,
    nccl_start,
    packages,
    rdma,
    trials,
)
from drivetrain.doctor.facts import NodeFacts
from drivetrain.doctor.finding import Check, Finding, run_check

CHECKS: tuple[Check, ...] = (
    *driver.CHECKS,
    *libraries.CHECKS,
    *gpu_health.CHECKS,
    *gpu_settings.CHECKS,
    *rdma.CHECKS,
    *nccl_start.CHECKS,
    *host.CHECKS,
    *packages.CHECKS,
    *trials.CHECKS,
)


def run_checks(nodes: Iterable[NodeFacts]) -> tuple[Finding, ...]:
    """Every check on every node."""
    return tuple(run_check(check, facts) for facts in nodes for check in CHECKS)
