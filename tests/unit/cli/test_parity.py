"""`drivetrain parity`: mistakes end before anything starts. For the rest see tests/end_to_end."""

import pytest

TAKEN = ["--precision bf16", "--compile true", "--strategy ddp", "--mesh.tp 2", "--output x", "--resume auto"]


@pytest.mark.parametrize(
    "words, says",
    [
        ("digits --strategies dpd", "did you mean ddp"),
        ("digit --strategies ddp", "there is no such file"),
        ("--strategies ddp", "neither a run file nor a --task"),
        ("digits", "nothing is named to compare it with"),
        ("digits --strategies ddp --global-batch 2 --world-sizes 1,3", "1 ranks would get no sample"),
        ("digits --strategies ddp -j 2x2", "one machine"),
        ("digits --strategies ddp -j 1x2 --world-sizes 1,3", "3 processes are more than 2"),
        ("digits --strategies ddp --world-sizes two", "not numbers"),
        ("digits --strategies ddp --steps 0", "0 is not in the range"),
        ("digits --strategies ddp --optm.lr 3", "did you mean optim"),
        ("digits --strategies ddp --device cuda", "no GPU is visible"),
        *((f"digits --strategies ddp {taken}", "parity decides this itself") for taken in TAKEN),
    ],
)
def test_a_mistake_is_explained_and_ends_with_2(cli, words, says):
    ended = cli("parity", *words.split())
    assert ended.code == 2
    assert says in ended.err
    assert ended.out == ""
