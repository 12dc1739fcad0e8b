"""The certificate: the same samples by whatever ranks, and replicas that differ are noticed."""

import json

import pytest

import rank_programs as programs

STEPS, STOP = 12, 6


def lines_of(folder):
    return [json.loads(line) for line in (folder / "certificate.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def alone(ranks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    ranks.run(1, programs.train, steps=STEPS, output=str(folder))
    return lines_of(folder)


def test_other_ranks_and_a_resume_leave_the_same_chain(ranks, tmp_path, alone):
    # It stops two steps after its last save: their lines are written twice, and count once.
    ranks.run(3, programs.train, steps=STOP + 2, output=str(tmp_path), save_every=STOP)
    ranks.run(2, programs.train, steps=STEPS, output=str(tmp_path), clip_norm=0.5)
    lines = lines_of(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["samples"] for line in lines] == [line["samples"] for line in alone]
    assert len({line["samples"] for line in lines}) == STEPS
    assert lines[-1]["grad_norm"] > 0


def test_another_order_gives_another_chain(ranks, tmp_path, alone):
    ranks.run(1, programs.train, steps=1, output=str(tmp_path), seed=4)
    assert lines_of(tmp_path)[0]["samples"] != alone[0]["samples"]


@pytest.mark.parametrize(("world_size", "named"), [(3, "rank 1 holds"), (2, "ranks 0, 1 hold")])
def test_a_flipped_bit_is_noticed_at_the_next_check(ranks, world_size, named):
    texts = ranks.run(
        world_size,
        programs.failing,
        expected="CorruptionError",
        steps=STEPS,
        flip_at=(1, 4),
        verify_every_steps=5,
    )
    assert all(named in text and "after step 5" in text for text in texts)


def test_a_flipped_bit_is_never_saved(ranks, tmp_path):
    texts = ranks.run(
        2,
        programs.failing,
        expected="CorruptionError",
        steps=STEPS,
        flip_at=(1, 4),
        output=str(tmp_path),
        save_every=3,
    )
    assert "after step 6" in texts[0]
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*")] == ["step-00000003"]
