"""fsdp: the same training as on one rank, in less memory; checkpoints that other strategies read."""

import rank_programs as programs
from ranks.strategy_contract import (
    STEPS,
    STOP,
    StrategyContract,
    assert_same_training,
    assert_same_weights,
    checkpoint_of,
)


class TestFsdp(StrategyContract):
    strategy = "fsdp"
    layouts = (
        (3, {}),
        (1, {}),
        (4, {"mesh": {"dp_replicate": 2}}),
        (2, {"fsdp_reshard_after_forward": False, "activation_checkpointing": 1}),
    )
    noise = {"norm": "batch", "dropout": 0.3}
    refuses = {"fp16": "fp16 on the CPU: torch's loss scaler takes no sharded gradients there"}
    also_refuses = (
        ({"fsdp_cpu_offload": True}, "fsdp.cpu_offload: the weights are on the CPU already"),
        ({"mesh": {"pp": 3}}, "fsdp does not use pp"),
    )


def test_tied_weights_of_text_are_sharded_and_go_on_under_single(ranks, single_run, tmp_path):
    options = {"task": "text", "net": {}, "clip_norm": 0.5, "ema_decay": 0.9}
    alone, _ = single_run(steps=STEPS, save_every=STOP, evaluate_every=5, **options)
    first = ranks.run(
        2, programs.train, strategy="fsdp", steps=STOP, save_every=STOP, output=str(tmp_path), **options
    )
    assert_same_training(first, alone, steps=range(STOP))
    rest = ranks.run(
        1, programs.train, strategy="single", steps=STEPS, resume=checkpoint_of(tmp_path), **options
    )
    assert_same_training(rest, alone, steps=range(STOP, STEPS))
    assert_same_weights(rest, alone)
