"""The parts of a training step: one definition for telemetry, explain, report, bench and plan."""

from __future__ import annotations

from enum import StrEnum


class StepPart(StrEnum):
    """Where the time of one step goes. The parts partition the compute stream and sum to the step."""

    DATA_WAIT = "data_wait"
    HOST_TO_DEVICE = "host_to_device"
    FORWARD = "forward"
    BACKWARD = "backward"
    EXPOSED_COMM = "exposed_comm"
    STRAGGLER_WAIT = "straggler_wait"
    OPTIMIZER = "optimizer"
    HOST = "host"
    CHECKPOINT = "checkpoint"
