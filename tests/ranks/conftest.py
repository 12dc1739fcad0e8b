"""What tests on ranks share: runs on one rank that others are held to, made once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rank_programs as programs

# Its asserts say what they compared, as those of test files do.
pytest.register_assert_rewrite("ranks.strategy_contract")


@pytest.fixture(scope="session")
def single_run(ranks, tmp_path_factory) -> Callable[..., tuple[dict[str, Any], Path]]:
    """`single_run(steps=…, **settings)` is what `rank_programs.train` gives on one rank under strategy
    single, and the run's folder."""
    made: dict[str, tuple[dict[str, Any], Path]] = {}

    def run(**options: Any) -> tuple[dict[str, Any], Path]:
        key = repr(sorted(options.items()))
        if key not in made:
            folder = tmp_path_factory.mktemp("single")
            result = ranks.run(1, programs.train, strategy="single", output=str(folder), **options)[0]
            made[key] = result, folder
        return made[key]

    return run
