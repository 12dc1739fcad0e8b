import dataclasses
from pathlib import Path

import pytest

from drivetrain.launch.check import Rendezvous, check, hosts_the_store, rendezvous_of, split_endpoint
from drivetrain.spec.errors import InputError
from drivetrain.spec.job import LaunchRequest

ONE = LaunchRequest(command=("a",), folder=Path("r"))
STATIC = dataclasses.replace(ONE, min_nodes=2, max_nodes=2, node_rank=1, master_addr="n0")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"command": ()}, "nothing to run"),
        ({"command": ("a\0b",)}, "NUL byte"),
        ({"environment": {"A=B": "c"}}, "no variable's name"),
        ({"nproc_per_node": 0}, "at least 1"),
        ({"min_nodes": 3, "max_nodes": 2}, "minimum"),
        ({"max_restarts": -1}, "negative"),
        ({"monitor_interval_s": 0.0}, "interval is 0"),
        ({"master_port": 70000}, "between 1 and 65535"),
        ({"node_rank": 1}, "only machine has number 0"),
        ({"min_nodes": 2, "max_nodes": 2}, "where they meet"),
        ({"min_nodes": 2, "max_nodes": 2, "master_addr": "n0"}, "number is missing"),
        ({"min_nodes": 2, "max_nodes": 2, "master_addr": "n0", "node_rank": 2}, "at most 1"),
        ({"min_nodes": 1, "max_nodes": 2, "master_addr": "n0", "node_rank": 0}, "may change"),
        ({"rdzv_endpoint": "n0:0"}, "port 0"),
        ({"rdzv_endpoint": "n0:http"}, "not host:port"),
    ],
)
def test_a_request_that_cannot_run_is_refused(changes: dict[str, object], found: str) -> None:
    with pytest.raises(InputError, match=found):
        check(dataclasses.replace(ONE, **changes))  # type: ignore[arg-type]


def test_the_kind_of_rendezvous_follows_from_the_request() -> None:
    elastic = dataclasses.replace(ONE, min_nodes=1, max_nodes=4, rdzv_endpoint="n0")
    for request in (ONE, STATIC, elastic):
        check(request)
    assert [rendezvous_of(item) for item in (ONE, STATIC, elastic)] == [
        Rendezvous.LOCAL,
        Rendezvous.STATIC,
        Rendezvous.C10D,
    ]
    hosts = (ONE, STATIC, dataclasses.replace(STATIC, node_rank=0), elastic)
    assert [hosts_the_store(item) for item in hosts] == [True, False, True, False]


def test_endpoints_are_split_as_torchrun_does() -> None:
    assert split_endpoint("n0") == ("n0", 29400)
    assert split_endpoint("n0:1") == ("n0", 1)
    assert split_endpoint("[::1]:1") == ("::1", 1)
    assert split_endpoint("fe80::1") == ("fe80::1", 29400)
