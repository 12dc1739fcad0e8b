"""pipeline: the same training with each layer on one rank, in every schedule; beside and inside data axes."""

import pytest

import pipeline_programs as own
import rank_programs as programs
from drivetrain.spec.parts import StepPart
from ranks.strategy_contract import (
    STEPS,
    STOP,
    StrategyContract,
    assert_same_bits,
    assert_same_training,
    assert_same_weights,
    checkpoint_of,
)


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


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("torchvision vit", {"pipeline_schedule": "zero_bubble"}),
        ("timm vit", {}),
        ("sequential", {}),
        ("two streams", {"pipeline_schedule": "interleaved"}),
        ("sequential", {"sizes": (8, 4)}),  # a step of other shapes than the one before
    ],
)
def test_models_of_other_kinds_train_as_on_one_rank(ranks, model, options):
    if model == "timm vit":
        pytest.importorskip("timm", reason="timm is not installed")
    work = {"model": model, "sizes": options.pop("sizes", (8,))} if "sizes" in options else {"model": model}
    (alone,) = ranks.run(1, own.train, strategy="single", **work)
    for losses in ranks.run(2, own.train, strategy="pipeline", micro_batch=2, **work, **options):
        assert losses == pytest.approx(alone, rel=1e-5)


def test_parameters_without_a_gradient_stay_as_on_one_rank(ranks, single_run):
    options = {"net": {"repeats": 2, "unused": True}, "steps": 4}
    alone, _ = single_run(**options)
    mesh = {"pp": 2, "dp_shard": 2}
    results = ranks.run(4, programs.train, strategy="pipeline", mesh=mesh, micro_batch=1, **options)
    assert_same_weights(results, alone)


def test_dropout_in_stages_goes_on_to_the_bit(ranks, tmp_path):
    options = {
        "strategy": "pipeline", "mesh": {"pp": 2, "dp_shard": 2}, "pipeline_schedule": "zero_bubble",
        "net": {"repeats": 4, "dropout": 0.3}, "precision": "bf16", "ema_decay": 0.9, "micro_batch": 1,
        "activation_checkpointing": 1, "steps": 8,
    }  # fmt: skip
    whole = ranks.run(4, programs.train, save_every=4, output=str(tmp_path), **options)
    rest = ranks.run(4, programs.train, resume=checkpoint_of(tmp_path, step=4), **options)
    assert_same_bits(rest, whole, first_step=4)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (
            (2, {"strategy": "fsdp"}),
            (4, {"mesh": {"pp": 2, "dp_shard": 2}, "pipeline_schedule": "zero_bubble"}),
        ),
        ((2, {"pipeline_schedule": "interleaved"}), (2, {"strategy": "ddp"})),
    ],
)
def test_a_checkpoint_of_one_strategy_goes_on_under_another(ranks, single_run, tmp_path, first, then):
    options = {**TestPipeline.shared_settings(), "micro_batch": 2}
    alone, _ = single_run(steps=STEPS, save_every=STOP, evaluate_every=5, **TestPipeline.shared_settings())
    (size, settings), (other_size, others) = first, then
    kept = {"steps": STOP, "save_every": STOP, "output": str(tmp_path)}
    ranks.run(size, programs.train, **{"strategy": "pipeline", **options, **settings, **kept})
    resumed = {"strategy": "pipeline", **options, **others, "resume": checkpoint_of(tmp_path)}
    rest = ranks.run(other_size, programs.train, steps=STEPS, **resumed)
    assert_same_training(rest, alone, steps=range(STOP, STEPS))
    assert_same_weights(rest, alone)


@pytest.mark.parametrize(
    ("world_size", "options", "said"),
    [
        (2, {"loss": "mean"}, "it looks like a mean"),  # found by the last stage, told by all
        (1, {"loss": "wrong shape"}, "it returned shape (2, 1)"),  # not torch's words around it
        (
            2,
            {"sizes": (8, 4), "every": 1, "micro_batch": 1},
            "different shapes: (1, 3, 4, 8), (1,) and (1, 3, 8, 8), (1,)",
        ),
    ],
)
def test_mistakes_are_told_in_their_own_words(ranks, world_size, options, said):
    run = {"strategy": "pipeline", "model": "sequential", "micro_batch": 2, **options}
    for text in ranks.run(world_size, own.failing, **run):
        assert said in text
