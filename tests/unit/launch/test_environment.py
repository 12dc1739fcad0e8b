import sys
import types
from dataclasses import dataclass

import pytest

from drivetrain.launch.environment import Place, thread_variables
from drivetrain.spec.rank_env import read_rank_env

PLACE = Place(
    rank=5,
    local_rank=1,
    world_size=8,
    local_world_size=4,
    node_rank=1,
    num_nodes=2,
    master_addr="n0",
    master_port=29500,
    attempt=3,
    max_restarts=4,
    run_id="job",
    store_is_hosted=True,
    error_file="/e.json",
    run_dir="/run",
)


@dataclass(frozen=True)
class FakeCpus:
    count: int = 9
    reason: str = "said so"


@pytest.fixture
def nine_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("drivetrain.hardware.cpu")
    module.usable_cpus = FakeCpus  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "drivetrain.hardware", types.ModuleType("drivetrain.hardware"))
    monkeypatch.setitem(sys.modules, "drivetrain.hardware.cpu", module)


def test_a_rank_reads_back_the_place_it_was_given() -> None:
    env = read_rank_env(PLACE.variables({}))
    assert (env.rank, env.world_size, env.local_rank, env.local_world_size) == (5, 8, 1, 4)
    assert (env.node_rank, env.master_addr, env.master_port, env.restart_count) == (1, "n0", 29500, 3)


def test_torch_is_told_whether_the_store_is_there() -> None:
    assert PLACE.variables({})["TORCHELASTIC_USE_AGENT_STORE"] == "True"


def test_the_users_error_handling_of_nccl_is_kept() -> None:
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    assert PLACE.variables({})[name] == "1"
    assert PLACE.variables({name: "3"})[name] == "3"


@pytest.mark.usefixtures("nine_cpus")
@pytest.mark.parametrize(("nproc", "threads"), [(1, "9"), (2, "4"), (4, "2"), (16, "1")])
def test_threads_are_the_cpus_shared_by_the_ranks(nproc: int, threads: str) -> None:
    variables, reason = thread_variables(nproc, {})
    assert variables == {"OMP_NUM_THREADS": threads}
    assert reason is not None
    assert "9 usable CPUs (said so)" in reason


@pytest.mark.usefixtures("nine_cpus")
def test_the_users_threads_are_never_overwritten() -> None:
    assert thread_variables(2, {"OMP_NUM_THREADS": "3"}) == ({}, None)
