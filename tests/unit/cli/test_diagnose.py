import json
from pathlib import Path

import pytest

from drivetrain.cli.main import main

LOG = "step 1 loss 2.0\n[rank1]: ValueError: SyncBatchNorm expected input tensor to be on GPU\n"


def test_json_has_the_promised_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "job.out"
    log.write_text(LOG)
    assert main(["diagnose", str(log), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["cause"] == "syncbn_input_not_on_gpu"
    assert said["culprit_rank"] == 1
    assert {"confidence", "node", "consequences", "alternatives", "fix", "collect_next"} <= set(said)
    assert said["evidence"][0]["line"] == 2
    assert set(said["evidence"][0]) >= {"file", "line", "text"}


def test_the_text_ends_in_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "job.out"
    log.write_text(LOG)
    assert main(["diagnose", str(log)]) == 0
    shown = capsys.readouterr().out
    assert "began on rank 1" in shown
    assert f"{log}:2:" in shown
    assert "→ BatchNorm" in shown


def test_a_page_and_the_list_need_no_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--explain", "shm_too_small"]) == 0
    assert "--shm-size" in capsys.readouterr().out
    assert main(["diagnose", "--causes"]) == 0
    assert "shm_too_small" in capsys.readouterr().out


@pytest.mark.parametrize("args", [[], ["none.log"], ["--explain", "nothing"], ["--rules", "none.yaml", "x"]])
def test_a_users_mistake_ends_with_2(args: list[str]) -> None:
    assert main(["diagnose", *args]) == 2
