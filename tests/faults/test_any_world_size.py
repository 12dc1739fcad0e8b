"""One run over 4, 3, 2, 1 and 4 ranks: the samples of each step, and the certificate, of a run with two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rank_programs as programs

# Steps at which the run stops, and the number of ranks until then. Five in a batch of eight are an odd share.
CHAIN = ((3, 4), (5, 3), (9, 2), (11, 1), (14, 4))
EPOCHS = 2  # 52 samples in batches of 8: 14 steps end in the third


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "certificate.jsonl").read_text().splitlines()]


def test_the_samples_go_on_exactly_whatever_the_number_of_ranks(ranks: Any, tmp_path: Path) -> None:
    steps = CHAIN[-1][0]
    options = {"ema_decay": 0.9, "clip_norm": 0.5}
    whole = ranks.run(2, programs.train, steps=steps, output=str(tmp_path / "whole"), **options)
    seen: dict[int, Any] = {}
    losses: list[float] = []
    for stop, world_size in CHAIN:
        start = len(losses)
        part = ranks.run(
            world_size,
            programs.train,
            steps=stop,
            output=str(tmp_path / "chain"),
            save_every=stop,
            **options,
        )
        assert part[0]["first_step"] == start
        seen |= programs.samples_by_step(part)
        losses += part[0]["losses"]
    assert seen == programs.samples_by_step(whole)
    positions = [row[0] for index in sorted(seen) for row in seen[index]]
    assert positions == list(range(steps * programs.GLOBAL_BATCH))
    assert len(positions) > EPOCHS * 52
    chain, undisturbed = (lines_of(tmp_path / name) for name in ("chain", "whole"))
    assert [line["samples"] for line in chain] == [line["samples"] for line in undisturbed]
    assert losses == pytest.approx(whole[0]["losses"], rel=1e-3)
    for kind in ("weights", "ema"):
        for name, tensor in whole[0][kind].items():
            assert part[0][kind][name] == pytest.approx(tensor, rel=1e-3, abs=1e-5), name
