"""tensor, and its compositions with data ranks: the same training as on one rank, each matrix shared."""

import pytest

import norm_programs as norms
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


class TestTensor(StrategyContract):
    strategy = "tensor"
    task = "text"
    layouts = (
        (2, {}),
        (4, {"mesh": {"tp": 2, "dp_replicate": 2}}),
        (4, {"strategy": "fsdp", "mesh": {"tp": 2}}),
    )
    refuses = {"fp16": "fp16 on the CPU: torch's loss scaler takes no sharded gradients there"}
    also_refuses = (
        ({"fsdp_cpu_offload": True}, "fsdp.cpu_offload: the weights are on the CPU already"),
        ({"mesh": {"pp": 2}}, "tensor does not use pp"),
        ({"task": "points", "net": {}}, "tensor parallelism (tp) of a Net"),
        ({"net": {"num_kv_heads": 1}}, "it does not divide 1 heads of keys and values"),
        ({"task": "planned", "net": {"inner": 25}}, "25 outputs of up"),
        ({"task": "planned", "net": {"plan": {"up": "column"}}}, "it says nothing of inside, down, head"),
        ({"task": "planned", "net": {"plan": {"inside": "row"}}}, "it is a LayerNorm"),
        ({"task": "planned", "net": {"plan": {"up": "columns"}}}, "there is no such word"),
    )


def test_a_checkpoint_passes_through_shards_over_parts_and_goes_on_to_the_bit(ranks, single_run, tmp_path):
    """tensor → fsdp over tensor → the same again → ddp. Parts of 33 rows are sharded unevenly."""
    options = {"task": "text", "net": {"ffn_width": 66}, "clip_norm": 0.5, "ema_decay": 0.9}
    alone, _ = single_run(steps=STEPS, **options)
    both = {"strategy": "fsdp", "mesh": {"tp": 2}}
    ranks.run(2, programs.train, strategy="tensor", steps=4, save_every=4, output=str(tmp_path), **options)
    whole = ranks.run(
        4, programs.train, steps=STOP, save_every=5, resume=checkpoint_of(tmp_path, step=4),
        output=str(tmp_path / "both"), **both, **options,
    )  # fmt: skip
    assert_same_training(whole, alone, steps=range(4, STOP))
    again = ranks.run(
        4, programs.train, steps=STOP, resume=checkpoint_of(tmp_path / "both", step=5), **both, **options
    )
    for result in whole:
        result["losses"] = [0.0] * 4 + result["losses"]
    assert_same_bits(again, whole, first_step=5)
    rest = ranks.run(
        2, programs.train, strategy="ddp", steps=STEPS, resume=checkpoint_of(tmp_path / "both"), **options
    )
    assert_same_training(rest, alone, steps=range(STOP, STEPS))
    assert_same_weights(rest, alone)


@pytest.mark.parametrize(
    ("task", "net"),
    [
        ("torchvision_vit", {}),
        ("timm_vit", {"qk_norm": True, "init_values": 0.1}),
        ("timm_vit", {"scale_attn_norm": True}),  # whose attention cannot be split
        ("planned", {}),
    ],
)
def test_models_of_others_train_as_on_one_rank(ranks, single_run, task, net):
    if task == "timm_vit":
        pytest.importorskip("timm")
    # SGD: the bias of keys has no gradient but rounding, which AdamW would magnify.
    options = {"steps": 6, "clip_norm": 0.5, "task": task, "net": net, "optimizer": "sgd", "lr": 0.1}
    alone, _ = single_run(**options)
    results = ranks.run(2, programs.train, strategy="tensor", **options)
    assert_same_training(results, alone, steps=range(6))
    assert_same_weights(results, alone)


def test_the_norm_counts_each_element_once_however_it_is_held(ranks):
    for norm, expected, scaled in ranks.run(4, norms.of_mixed_gradients):
        assert norm == pytest.approx(expected, rel=1e-6)
        assert scaled == pytest.approx(0.5, rel=1e-4)
