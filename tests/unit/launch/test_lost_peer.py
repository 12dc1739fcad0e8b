import pytest

from drivetrain.launch.lost_peer import SIGNS, sign_of_lost_peer

# As torch 2.14 and NCCL word them, shortened.
SAID = """
RuntimeError: [../gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:10130: Connection reset by peer.
RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:31241
torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the …
torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0
torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.
RuntimeError: Socket Timeout
RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error
BrokenPipeError: [Errno 32] Broken pipe
ConnectionRefusedError: [Errno 111] Connection refused
torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.cpp:77, remote process exited or there was a …
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
[rank1]:[E911 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(…)
[E911 10:00:00.1] To avoid data inconsistency, we are taking the entire process down.
[rank0]: Process group watchdog thread terminated with exception: CUDA error
"""


@pytest.mark.parametrize("text", SAID.strip().splitlines())
def test_what_a_survivor_says_is_known(text: str) -> None:
    assert sign_of_lost_peer("epoch 1\n" + text + "\n") == text


@pytest.mark.parametrize("sign", SIGNS)
def test_every_sign_is_found_whatever_its_case(sign: str) -> None:
    assert sign == sign.lower()
    assert sign_of_lost_peer(f"Error: {sign.upper()}!") is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ValueError: no learning rate",
        "killed by SIGKILL: often the kernel's out-of-memory killer; see dmesg",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        # Only what exceptions say counts, not the code they passed through.
        'Traceback …\n  File "broken pipe.py", line 2\n    except DistBackendError: f()\nValueError: no',
    ],
)
def test_a_failure_of_its_own_is_none(text: str) -> None:
    assert sign_of_lost_peer(text) is None


def test_a_cause_within_an_exception_group_or_a_chain_counts() -> None:
    group = "  | Exception group (1 sub-exception)\n    | RuntimeError: Connection closed by peer"
    assert sign_of_lost_peer(group) is not None
    chain = (
        "RuntimeError: Connection closed by peer\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\nTrainingFailed: step 7"
    )
    assert sign_of_lost_peer(chain) == "RuntimeError: Connection closed by peer"
