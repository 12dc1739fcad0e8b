"""ddp: the same training as on one rank."""

from ranks.strategy_contract import StrategyContract


class TestDdp(StrategyContract):
    strategy = "ddp"
    layouts = ((3, {}), (2, {}))
    noise = {"norm": "batch", "dropout": 0.3}
    also_refuses = (
        ({"sync_batchnorm": True}, "sync_batchnorm on the CPU"),
        ({"mesh": {"tp": 3}}, "ddp does not use tp"),
    )
