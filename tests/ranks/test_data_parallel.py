"""data_parallel on the CPU, where it is the plain module; over several GPUs: tests/gpu."""

import rank_programs as programs
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import MessageEvent
from drivetrain.telemetry.reader import read_events
from ranks.strategy_contract import StrategyContract


class TestDataParallel(StrategyContract):
    strategy = "data_parallel"
    layouts = ((1, {}),)
    noise = {"norm": "batch", "dropout": 0.3}
    refuses = {
        "activation_checkpointing": "nn.DataParallel copies the model every step",
        "selective": "nn.DataParallel copies the model every step",
    }
    also_refuses = (
        ({"compile": True}, "compile: nn.DataParallel copies the model"),
        ({"fsdp_cpu_offload": True}, "fsdp settings: every GPU has all weights"),
        ({"fsdp_reshard_after_forward": True}, "use strategy fsdp"),
        ({"sync_batchnorm": True}, "it needs a process for each GPU"),
    )


def test_several_processes_are_refused_naming_what_does_it(ranks):
    for text in ranks.run(2, programs.refused, strategy="data_parallel", steps=2):
        assert "1 process, or strategy ddp on 2" in text


def test_that_there_is_nothing_to_scatter_over_is_said(ranks, tmp_path):
    ranks.run(1, programs.train, strategy="data_parallel", steps=1, output=str(tmp_path))
    events = read_events(RunDir(tmp_path).rank_events(0), kinds=(MessageEvent,))
    assert any("on the CPU is the plain module" in event.text for event in events)
