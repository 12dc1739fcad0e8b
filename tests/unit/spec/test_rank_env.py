import pytest

from drivetrain.spec.errors import InputError
from drivetrain.spec.rank_env import read_rank_env

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
# As Open MPI 4.1 sets them: NODE_RANK is the rank within the node, and so says nothing about the node.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
}
SLURM_STEP = {
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
}


def test_a_process_started_by_hand_is_the_only_rank():
    env = read_rank_env({})
    assert (env.rank, env.world_size, env.launcher, env.is_first) == (0, 1, "none", True)


def test_torchruns_variables_are_read():
    env = read_rank_env(TORCHRUN)
    assert (env.rank, env.world_size, env.local_rank, env.local_world_size, env.node_rank) == (5, 8, 1, 4, 1)
    assert (env.master_addr, env.master_port, env.restart_count) == ("node0", 29500, 2)


def test_open_mpis_variables_are_read_without_a_master():
    env = read_rank_env(OPEN_MPI)
    assert (env.rank, env.world_size, env.local_rank, env.local_world_size, env.node_rank) == (3, 4, 1, 2, 1)
    assert env.master_addr is None
    assert env.launcher == "openmpi"


def test_a_slurm_step_has_ranks_and_a_batch_script_has_none():
    assert read_rank_env(SLURM_STEP).rank == 2
    batch_script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
    assert read_rank_env(batch_script).launcher == "none"


def test_torchrun_inside_slurm_wins():
    assert read_rank_env({**SLURM_STEP, **TORCHRUN}).launcher == "torchrun"


def test_tasks_per_node_in_slurms_short_form_are_understood():
    assert read_rank_env({**SLURM_STEP, "SLURM_NTASKS_PER_NODE": "2(x2)"}).local_world_size == 2


@pytest.mark.parametrize(
    "change", [{"RANK": "two"}, {"RANK": "8"}, {"RANK": "-1"}, {"WORLD_SIZE": "0"}, {"LOCAL_RANK": "x"}]
)
def test_contradictions_are_refused_naming_the_variable(change):
    with pytest.raises(InputError) as caught:
        read_rank_env({**TORCHRUN, **change})
    assert next(iter(change)) in str(caught.value)
