"""A root folder holding captured /proc and /sys files."""

from __future__ import annotations

import pytest


@pytest.fixture
def tree(tmp_path):
    def tree(files: dict[str, str]):
        for name, text in files.items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return tree
