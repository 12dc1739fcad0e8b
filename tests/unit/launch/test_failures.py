import dataclasses
import json
import os
import signal
import time
from pathlib import Path

import pytest

from drivetrain.launch.failures import causes, earliest, job_exit_code, rank_outcome, read_error_file
from drivetrain.launch.ranks import RankEnd
from drivetrain.spec.outcome import RankOutcome

TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nValueError: no'


def make_end(folder: Path, returncode: int | None, log: str = "", *, stopped: float | None = None) -> RankEnd:
    (folder / "log").write_text(log)
    return RankEnd(
        rank=1,
        local_rank=1,
        pid=7,
        returncode=returncode,
        ended_wall_s=1000.0,
        stopped_wall_s=stopped,
        log=folder / "log",
        log_start=0,
        error_file=folder / "error.json",
    )


def write_error_file(folder: Path, timestamp: object) -> None:
    message = {
        "message": "ValueError: no",
        "extraInfo": {"py_callstack": TRACEBACK + "\n", "timestamp": timestamp},
    }
    (folder / "error.json").write_text(json.dumps({"message": message}))


def outcome(
    rank: int,
    *,
    exit_code: int | None = None,
    signum: int | None = None,
    at: float | None,
    message: str | None = None,
) -> RankOutcome:
    return RankOutcome(
        rank=rank,
        local_rank=rank,
        node_rank=0,
        host="a",
        pid=1,
        exit_code=exit_code,
        signal=signum,
        ended_wall_s=at,
        message=message,
    )


def test_the_error_file_comes_before_the_log(tmp_path: Path) -> None:
    end = make_end(tmp_path, 1, log="Traceback (most recent call last):\nKeyError: 1\n")
    write_error_file(tmp_path, "990.25")
    result = rank_outcome(end, node_rank=2, host="b")
    assert (result.message, result.traceback, result.ended_wall_s) == ("ValueError: no", TRACEBACK, 990.25)
    assert (result.rank, result.node_rank, result.host, result.exit_code) == (1, 2, "b", 1)


def test_torchs_whole_seconds_are_refined_by_the_files_time(tmp_path: Path) -> None:
    now = time.time()
    write_error_file(tmp_path, str(int(now)))
    os.utime(tmp_path / "error.json", (now, now))
    recorded = read_error_file(tmp_path / "error.json")
    assert recorded is not None
    assert recorded.raised_wall_s == pytest.approx(now, abs=0.001)


def test_a_stamp_far_from_the_files_time_is_believed(tmp_path: Path) -> None:
    write_error_file(tmp_path, "990")
    recorded = read_error_file(tmp_path / "error.json")
    assert recorded is not None
    assert recorded.raised_wall_s == 990.0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"message": 3}', '{"other": 1}'])
def test_an_unusable_error_file_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "error.json").write_text(text)
    assert read_error_file(tmp_path / "error.json") is None


def test_without_an_error_file_the_log_tells(tmp_path: Path) -> None:
    result = rank_outcome(make_end(tmp_path, 1, log="epoch 1\n" + TRACEBACK + "\n"), node_rank=0, host="a")
    assert (result.message, result.traceback, result.ended_wall_s) == ("ValueError: no", TRACEBACK, 1000.0)


def test_a_signal_is_explained_and_an_older_traceback_is_not_blamed(tmp_path: Path) -> None:
    result = rank_outcome(make_end(tmp_path, -signal.SIGKILL, log=TRACEBACK), node_rank=0, host="a")
    assert (result.exit_code, result.signal, result.traceback) == (None, 9, None)
    assert result.message is not None
    assert result.message.startswith("killed by SIGKILL: often the kernel's out-of-memory killer")


def test_an_exit_without_traceback_shows_the_last_lines(tmp_path: Path) -> None:
    result = rank_outcome(make_end(tmp_path, 3, log="one\ntwo\n"), node_rank=0, host="a")
    assert result.message == "exited with code 3 without a traceback; its last lines:\none\ntwo"


def test_a_usage_message_stands_alone(tmp_path: Path) -> None:
    result = rank_outcome(make_end(tmp_path, 2, log="a.py: error: no such flag\n"), node_rank=0, host="a")
    assert result.message == "a.py: error: no such flag"


def test_a_process_that_survived_sigkill_is_told_of(tmp_path: Path) -> None:
    result = rank_outcome(make_end(tmp_path, None), node_rank=0, host="a")
    assert (result.exit_code, result.signal) == (None, None)
    assert "survived SIGKILL" in (result.message or "")


def test_a_rank_that_the_launcher_stopped_is_no_cause_unless_it_had_raised_before(tmp_path: Path) -> None:
    end = make_end(tmp_path, -signal.SIGTERM, stopped=995.0)
    stopped = rank_outcome(end, node_rank=0, host="a")
    assert stopped.message == "ended by the launcher with SIGTERM"
    assert causes([end], [stopped]) == ()
    write_error_file(tmp_path, "990.5")
    raised = rank_outcome(end, node_rank=0, host="a")
    assert causes([end], [raised]) == (raised,)
    alone = make_end(tmp_path, 1)
    assert len(causes([alone], [rank_outcome(alone, node_rank=0, host="a")])) == 1


def test_the_earliest_failure_wins_and_success_does_not_count() -> None:
    ends = [
        outcome(0, exit_code=0, at=1.0),
        outcome(1, signum=15, at=3.0),
        outcome(2, exit_code=1, at=2.0),
        outcome(3, exit_code=1, at=None),
    ]
    first = earliest(ends)
    assert first is not None
    assert first.rank == 2
    assert earliest(ends[:1]) is None


LOST = "RuntimeError: [pair.cc:545] Read error [127.0.0.1]:10130: Connection reset by peer"


@pytest.mark.parametrize(
    "cause",
    [
        outcome(0, signum=9, at=20.5, message="killed by SIGKILL: …"),  # the kernel took its time
        outcome(0, signum=15, at=10.0, message="killed by SIGTERM: …"),
        outcome(0, exit_code=3, at=10.2, message="exited with code 3 without a traceback"),
        outcome(0, exit_code=1, at=10.3, message="ValueError: no"),
    ],
)
def test_a_rank_that_lost_its_peer_is_not_blamed(cause: RankOutcome) -> None:
    survivors = [outcome(rank, exit_code=1, at=10.0 + rank / 1e3, message=LOST) for rank in (1, 2)]
    assert earliest([*survivors, cause]) == cause
    assert earliest([cause, *survivors]) == cause


def test_among_ranks_that_lost_their_peers_the_earliest_is_named() -> None:
    ends = [outcome(rank, exit_code=1, at=10.0 - rank, message=LOST) for rank in range(3)]
    assert earliest(ends) == ends[2]


def test_a_failure_long_after_a_lost_peer_is_another_story() -> None:
    lost = outcome(1, exit_code=1, at=10.0, message=LOST)
    late = outcome(0, exit_code=1, at=41.0, message="ValueError: no")
    assert earliest([late, lost]) == lost


def test_a_sigkill_that_the_launcher_did_not_send_is_a_cause(tmp_path: Path) -> None:
    """On a machine with GPUs a killed process takes seconds to end, and is told to end meanwhile."""
    end = make_end(tmp_path, -signal.SIGKILL, stopped=995.0)
    killed = rank_outcome(end, node_rank=0, host="a")
    assert (killed.message or "").startswith("killed by SIGKILL")
    assert causes([end], [killed]) == (killed,)
    ours = dataclasses.replace(end, is_killed=True)
    stopped = rank_outcome(ours, node_rank=0, host="a")
    assert stopped.message == "ended by the launcher with SIGKILL"
    assert causes([ours], [stopped]) == ()


def test_an_abort_of_the_watchdog_is_told_in_its_own_words(tmp_path: Path) -> None:
    said = "[E911] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
    aborted = rank_outcome(
        make_end(tmp_path, -signal.SIGABRT, log=f"epoch 1\n{said}\nterminate called\n"), node_rank=0, host="a"
    )
    assert aborted.message == f"killed by SIGABRT: {said}"
    plain = rank_outcome(make_end(tmp_path, -signal.SIGABRT, log="terminate called\n"), node_rank=0, host="a")
    assert earliest([aborted, plain]) == plain


@pytest.mark.parametrize(
    ("exit_code", "signum", "expected"),
    [
        (1, None, 1),
        (2, None, 2),
        (3, None, 1),
        (255, None, 1),
        (None, 9, 137),
        (None, 15, 143),
        (None, 11, 139),
    ],
)
def test_the_jobs_exit_code(exit_code: int | None, signum: int | None, expected: int) -> None:
    assert job_exit_code(outcome(0, exit_code=exit_code, signum=signum, at=1.0)) == expected


def test_no_failure_is_exit_code_zero() -> None:
    assert job_exit_code(None) == 0
