"""What a pipeline refuses before anything starts, with the numbers and what would do."""

import pytest
import torch

from drivetrain.engine.settings import RunSettings
from drivetrain.engine.strategies.pipeline_rules import place_of, refusals
from drivetrain.spec.layout import plan_layout


def refused(*, world_size=4, mesh=None, **options):
    settings = RunSettings(strategy="pipeline", **{"global_batch": 32, **options})
    return refusals(settings, plan_layout("pipeline", world_size, mesh), torch.device("cpu"))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero_bubble"])
def test_every_schedule_runs_as_it_comes(schedule):
    assert refused(pipeline_schedule=schedule) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"micro_batch": 16}, "1f1b with 2 micro-batches a step: it needs at least as many as stages, 4;"),
        ({"micro_batch": 16}, "--micro-batch 8 makes it 4"),
        ({"global_batch": 3}, "a rank's share is 3 samples; use schedule gpipe, or a larger global batch"),
        (
            {"pipeline_schedule": "interleaved", "micro_batch": 3},
            "with 11 micro-batches a step: it needs a multiple",
        ),
        ({"pipeline_schedule": "interleaved", "micro_batch": 3}, "(2); --micro-batch 4 makes it 8"),
        ({"pipeline_stages_per_rank": 2}, "stages_per_rank 2 with pipeline.schedule 1f1b: it runs 1 a rank"),
        ({"pipeline_schedule": "zero_bubble", "pipeline_stages_per_rank": 3}, "it runs 2 a rank"),
        ({"pipeline_schedule": "interleaved", "pipeline_stages_per_rank": 1}, "use 1f1b"),
        ({"mesh": {"tp": 2}}, "tp 2: layers inside a stage are not cut"),
        ({"precision": "fp16"}, "use bf16 or fp32"),
        ({"sync_batchnorm": True}, "sync_batchnorm: batch statistics"),
        ({"channels_last": True}, "channels_last"),
        ({"fsdp_cpu_offload": True}, "fsdp.cpu_offload"),
        ({"activation_checkpointing": "selective", "pipeline_schedule": "zero_bubble"}, "for one backward"),
        ({"compile": True, "pipeline_schedule": "zero_bubble"}, "a compiled backward cannot be split"),
    ],
)
def test_what_cannot_run_is_refused_by_name(options, said):
    assert any(said in reason for reason in refused(**options)), refused(**options)


def test_stages_go_round_or_there_and_back():
    assert [place_of(stage, 3, "interleaved") for stage in range(6)] == [0, 1, 2, 0, 1, 2]
    assert [place_of(stage, 3, "zero_bubble") for stage in range(6)] == [0, 1, 2, 2, 1, 0]
