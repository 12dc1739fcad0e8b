"""pipeline: the same training with each layer on one rank, in every schedule; beside and inside data axes."""

import re

import pytest
import torch

import pipeline_programs as own
import rank_programs as programs
from ranks.strategy_contract import (
    STEPS,
    STOP,
    StrategyContract,
    assert_same_bits,
    assert_same_training,
    assert_same_weights,
    checkpoint_of,
)
from drivetrain.spec.parts import StepPart


class TestPipeline(StrategyContract):
    strategy = "pipeline"
    task = "text"
    layouts = (
        (2, {}),
        (2, {"pipeline_schedule": "gpipe"}),
        (2, {"pipeline_schedule": "interleaved"}),
        (2, {"pipeline_schedule": "zero_bubble"}),
        (3, {"mesh": {"pp": 1, "dp_shard": 3}}),
        (4, {"mesh": {"pp": 2, "dp_replicate": 2}}),
        (4, {"mesh": {"pp": 2, "dp_shard": 2}, "pipeline_schedule": "zero_bubble"}),
    )
    parts = StrategyContract.parts | {StepPart.EXPOSED_COMM}
    refuses = {
        "fp16": "fp16: the stages would have to agree on the scale of the loss",
        "own_loop": "it runs forward and backward itself",
    }
    also_refuses = (
        ({"mesh": {"tp": 2}}, "tp 2: layers inside a stage are not cut"),
        ({"compile": True, "pipeline_schedule": "zero_bubble"}, "a compiled backward cannot be split"),
        ({"micro_batch": 8}, "1f1b with 1 micro-batches a step: it needs at least as many as stages, 2"),
        ({"net": {"num_layers": 1}}, "a pipeline of 2 stages: the Gpt has 1 layers"),
        ({"task": "points", "net": {"norm": "batch", "repeats": 2}}, "norm is a BatchNorm2d"),
    )
