import dataclasses

from drivetrain.launch.describe import describe_failure
from drivetrain.spec.outcome import Outcome, RankOutcome

FIRST = RankOutcome(
    rank=5,
    local_rank=1,
    node_rank=2,
    host="node2",
    pid=99,
    exit_code=1,
    ended_wall_s=1_000_012.5,
    message="ValueError: no",
    traceback="Traceback (most recent call last):\n  File …\nValueError: no",
    log="runs/a/logs/rank-00005.log",
)


def make(first: RankOutcome | None, **changes: object) -> Outcome:
    outcome = Outcome(
        exit_code=1,
        world_size=8,
        restarts=0,
        started_wall_s=1_000_000.0,
        ended_wall_s=1_000_013.0,
        command=("python", "a b.py"),
        ranks=() if first is None else (first, dataclasses.replace(first, rank=4, exit_code=None, signal=15)),
        earliest_failure=first,
    )
    return dataclasses.replace(outcome, **changes)  # type: ignore[arg-type]


def test_it_names_rank_host_code_time_log_and_traceback() -> None:
    text = describe_failure(make(FIRST, restarts=2))
    assert text.startswith("Traceback (most recent call last):")
    headline = text.index("rank 5 of 8 failed first: exit code 1")
    tail = text[headline:]
    for part in (
        "node2",
        "node rank 2",
        "12.5 s after the start",
        "rank-00005.log",
        "ValueError: no",
        "2 before",
    ):
        assert part in tail
    assert "rank 4" in tail


def test_a_signal_is_given_by_name() -> None:
    killed = dataclasses.replace(
        FIRST, exit_code=None, signal=9, traceback=None, message="killed by SIGKILL: …"
    )
    assert "failed first: signal 9 (SIGKILL)" in describe_failure(make(killed, exit_code=137))


def test_an_input_error_is_told_by_its_message_alone() -> None:
    message = "data.path /x: no such folder\n  → give --data.path"
    for prefix in ("InputError: ", "drivetrain.spec.errors.InputError: "):
        recorded = dataclasses.replace(
            FIRST,
            exit_code=2,
            message=prefix + message,
            traceback=f"Traceback (most recent call last):\n  File …\n{prefix}{message}",
        )
        assert describe_failure(make(recorded, exit_code=2)) == message


def test_an_input_error_cut_to_one_line_is_completed_from_its_traceback() -> None:
    traceback = "Traceback (most recent call last):\n  File …\ndrivetrain.spec.errors.InputError: a: b\n  → c"
    recorded = dataclasses.replace(FIRST, exit_code=2, message="a: b", traceback=traceback)
    assert describe_failure(make(recorded, exit_code=2)) == "a: b\n  → c"


def test_a_usage_message_from_the_log_stands_alone() -> None:
    usage = dataclasses.replace(FIRST, exit_code=2, message="a.py: error: no such flag", traceback=None)
    assert describe_failure(make(usage, exit_code=2)) == "a.py: error: no such flag"


def test_exit_code_2_of_another_exception_keeps_its_traceback() -> None:
    odd = dataclasses.replace(FIRST, exit_code=2)
    assert "Traceback" in describe_failure(make(odd, exit_code=2))


def test_without_a_failing_rank_the_launchers_reason_is_told() -> None:
    assert (
        describe_failure(make(None, exit_code=143, error="interrupted by SIGTERM"))
        == "interrupted by SIGTERM"
    )
    assert describe_failure(make(None, exit_code=1)) == "failed with exit code 1"
    assert describe_failure(make(None, exit_code=0)) == ""


def test_an_outcome_survives_json() -> None:
    outcome = make(FIRST, error="also this")
    assert Outcome.from_json(outcome.to_json()) == outcome
    assert Outcome.from_json(make(None).to_json()) == make(None)


def test_fields_of_a_later_schema_are_ignored() -> None:
    text = (
        make(FIRST)
        .to_json()
        .replace('"restarts": 0', '"restarts": 0, "later": 1')
        .replace('"pid"', '"new": 2, "pid"')
    )
    assert Outcome.from_json(text) == make(FIRST)
