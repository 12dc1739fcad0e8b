import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.diagnose.logs import diagnose_logs, diagnose_run, diagnose_text
from drivetrain.diagnose.rule_files import load_rules
from drivetrain.spec.errors import InputError
from drivetrain.spec.outcome import Outcome, RankOutcome

WATCHDOG = (
    "[E ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=15, OpType=ALLREDUCE, NumelIn=5, NumelOut=5, Timeout(ms)=600000) ran for 600037 "
    "milliseconds before timing out.\n"
)
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
WORDS = [text.encode() for rule in load_rules().rules for text in rule.texts[:1]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from([*WORDS, b"\n", b"\r", b"\x1b[1m", b"[rank", b"3]: ", b"1.5 GiB"])
        | st.binary(max_size=30)
    )
)
def test_no_bytes_raise(pieces: list[bytes]) -> None:
    verdict = diagnose_text(b"".join(pieces))
    json.dumps(verdict.to_json())


def test_a_run_directory_names_the_rank_by_its_log(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "rank-00000.log").write_text(WATCHDOG.format(0))
    (logs / "rank-00003.log").write_text(ECC)
    verdict = diagnose_run(tmp_path)
    assert (verdict.cause, verdict.culprit_rank) == ("gpu_ecc_uncorrectable", 3)
    assert [item.evidence.file for item in verdict.consequences] == [str(logs / "rank-00000.log")]


def test_names_of_other_files_are_no_evidence(tmp_path: Path) -> None:
    log = tmp_path / "rank-00003.log"
    log.write_text(ECC)
    assert diagnose_logs([log]).culprit_rank is None


def test_the_launcher_saw_the_signal(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-00000.log").write_text("step 3 loss 2.0\n")
    (tmp_path / "launch").mkdir()
    dead = RankOutcome(rank=1, local_rank=1, node_rank=0, host="a", pid=9, signal=11, ended_wall_s=5.0)
    outcome = Outcome(
        exit_code=139, world_size=2, restarts=0, started_wall_s=0.0, ended_wall_s=6.0, command=("x",),
        ranks=(dead,), earliest_failure=dead,
    )  # fmt: skip
    path = tmp_path / "launch" / "outcome.json"
    path.write_text(outcome.to_json())
    verdict = diagnose_run(tmp_path)
    assert (verdict.cause, verdict.culprit_rank) == ("worker_native_crash", 1)
    assert '"rank": 1' in path.read_text().splitlines()[verdict.evidence[0].line - 1]


def test_a_line_is_numbered_by_newlines_and_found_over_any_border(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"line {number}\n" for number in range(1, 400)) + ECC + "tail\n" * 300
    for size in (64, 100, 1000):
        monkeypatch.setattr("drivetrain.diagnose.scan.CHUNK_BYTES", size)
        verdict = diagnose_text(text)
        assert (verdict.cause, verdict.evidence[0].line) == ("gpu_ecc_uncorrectable", 400)
        assert verdict.num_lines == 700


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_a_windows_shells_encoding_is_read(encoding: str) -> None:
    assert diagnose_text(ECC.encode(encoding)).cause == "gpu_ecc_uncorrectable"


def test_what_does_not_exist_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        diagnose_logs([tmp_path / "none.log"])
    with pytest.raises(InputError, match="holds no logs"):
        diagnose_logs([tmp_path])


def test_the_earliest_and_deepest_cause_wins_in_any_order() -> None:
    lines = [WATCHDOG.format(5), ECC, "RuntimeError: Connection closed by peer [10.0.0.1]:1\n"]
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        verdict = diagnose_text("".join(lines[number] for number in order))
        assert verdict.cause == "gpu_ecc_uncorrectable"
        assert {item.what for item in verdict.consequences} >= {"remote_process_died"}


def test_two_independent_causes_lower_the_confidence() -> None:
    verdict = diagnose_text(
        "AssertionError: Torch not compiled with CUDA enabled\nOSError: [Errno 24] Too many open files\n"
    )
    assert (verdict.cause, verdict.confidence) == ("torch_cpu_build", "medium")
    assert [item.cause for item in verdict.alternatives] == ["too_many_open_files"]


def test_a_flood_of_one_line_hides_no_other() -> None:
    flood = "n1:1:2 [0] NCCL WARN socketProgress: Connection closed by remote peer n2<41109>\n" * 30_000
    verdict = diagnose_text(flood + ECC + flood)
    assert (verdict.cause, verdict.evidence[0].line) == ("gpu_ecc_uncorrectable", 30_001)
