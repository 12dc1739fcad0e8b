"""`drivetrain parity` on a GPU: ranks fork a process for each strategy, which must find CUDA untouched."""

import json
import subprocess
import sys

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
NUM_GPUS = torch.cuda.device_count()


@pytest.mark.parametrize("world_size", [1, 2])
def test_strategies_are_equal_on_gpus(tmp_path, world_size):
    if world_size > NUM_GPUS:
        pytest.skip(f"needs {world_size} GPUs, {NUM_GPUS} here")
    words = ["parity", "digits", "--strategies", "ddp,fsdp", "-j", f"1x{world_size}", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "drivetrain", *words, "--device", "cuda"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [item["status"] for item in json.loads(done.stdout)["results"]] == ["equal", "equal"]
