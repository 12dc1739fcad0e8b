"""Writes `docs/causes`: python -m drivetrain.diagnose.pages FOLDER."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from drivetrain.diagnose.rule_files import load_rules
from drivetrain.diagnose.show import cause_page, causes_index


def pages() -> Mapping[str, str]:
    """File name → text, of a page for each cause and their index."""
    book = load_rules()
    return {"index.md": causes_index(book)} | {f"{name}.md": cause_page(book, name) for name in book.causes}


def write_pages(folder: Path) -> None:
    """Writes all pages and removes those of causes that are no more."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in folder.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
