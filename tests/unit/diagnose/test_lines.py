import pytest

from drivetrain.diagnose.lines import Place, read_line

PLACE = Place(file="x", number=1)


@pytest.mark.parametrize(
    "raw, rank, node, text",
    [
        ("[rank3]: boom", 3, None, "boom"),
        ("[1,3]<stderr>:boom", 3, None, "boom"),
        ("[prterun-host-1@1,12]<stdout>: boom", 12, None, "boom"),
        ("Tue Mar  5 10:00:00 2024[2]<stderr>:boom", 2, None, "boom"),
        (" 7: boom", 7, None, "boom"),
        ("[default1]:boom", 1, None, "boom"),
        ("[pod/train-worker-2/pytorch] [rank9]: boom", 9, "train-worker-2", "boom"),
        ("2024-05-01T10:00:00.123456789Z boom", None, None, "boom"),
        ("[2024-05-01 10:00:00,123] boom", None, None, "boom"),
        ("Jun 11 07:12:38 gpu-17 kernel: [812331.104216] NVRM: boom", None, "gpu-17", "NVRM: boom"),
        ("\x1b[31m[rank4]:\x1b[0m boom", 4, None, "boom"),
        ("n7:12:34 [0] NCCL WARN boom", None, "n7", "NCCL WARN boom"),
        ("[E ProcessGroupNCCL.cpp:916] [Rank 5] boom", 5, None, "[E ProcessGroupNCCL.cpp:916] [Rank 5] boom"),
        (
            "[PG ID 0 PG GUID 0(default_pg) Rank 6] boom",
            6,
            None,
            "[PG ID 0 PG GUID 0(default_pg) Rank 6] boom",
        ),
    ],
)
def test_prefixes_tell_who_wrote(raw: str, rank: int | None, node: str | None, text: str) -> None:
    line = read_line(raw, PLACE)
    assert (line.rank, line.node, line.text) == (rank, node, text)


def test_the_prefix_overrides_what_is_known_of_the_file() -> None:
    assert read_line("boom", PLACE, rank=2).rank == 2
    assert read_line("[rank3]: boom", PLACE, rank=2).rank == 3


def test_stamps_of_one_kind_can_be_compared() -> None:
    first = read_line("[2024-02-29 23:59:59,500] x", PLACE).stamp
    then = read_line("2024-03-01T00:00:01Z x", PLACE).stamp
    assert first is not None
    assert then is not None
    assert first.kind == then.kind
    assert then.seconds - first.seconds == 1.5
    assert read_line("[2024-13-45 99:00:00] x", PLACE).stamp is None
