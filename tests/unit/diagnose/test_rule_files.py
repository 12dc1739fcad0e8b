from pathlib import Path

import pytest

from drivetrain.diagnose.logs import diagnose_text
from drivetrain.diagnose.pages import pages
from drivetrain.diagnose.rule_files import load_rules
from drivetrain.diagnose.rules import compile_pattern
from drivetrain.spec.errors import InputError

DOCS = Path(__file__).parents[3] / "docs"


def test_every_pattern_of_ours_compiles_and_every_cause_can_be_told() -> None:
    book = load_rules()
    for rule in book.rules:
        for source in rule.sources:
            compile_pattern(source)
    told = {rule.cause for rule in book.rules}
    assert set(book.causes) - told == {"not_enough_info", "no_problem_found"}
    assert all(cause.title for cause in book.causes.values())
    assert [cause.id for cause in book.causes.values() if not cause.fix and cause.group != "none"] == []


def test_a_user_adds_a_rule_in_five_lines(tmp_path: Path) -> None:
    how_to = (DOCS / "how-to" / "diagnose-rules.md").read_text()
    rules = tmp_path / "my.yaml"
    rules.write_text(how_to.split("```yaml\n")[1].split("```")[0])
    book = load_rules([rules])
    verdict = diagnose_text(
        "Lustre: 3:0: Connection to lfs-OST0003 at 10.0.0.1 was lost\nstep 1 loss 2.0\n", book
    )
    assert verdict.cause == "storage_down"
    assert verdict.fix.startswith("ask the storage team")
    assert diagnose_text("step 1 loss 2.0", book).cause == "no_problem_found"


def test_all_faults_of_a_file_are_named(tmp_path: Path) -> None:
    rules = tmp_path / "bad.yaml"
    rules.write_text(
        "rules:\n- {id: a, cause: x, match: 'a('}\n- {id: b, cause: x, match: 'ab'}\n"
        "- {id: c, cause: x, match: 'abcdef', confidnce: low}\n- {id: d, match: 'abcdef'}\n"
    )
    with pytest.raises(InputError) as caught:
        load_rules([rules])
    for word in ("rule a", "no regular expression", "rule b", "did you mean confidence", "rule d"):
        assert word in caught.value.found


def test_a_name_that_stands_for_nothing_is_refused(tmp_path: Path) -> None:
    rules = tmp_path / "bad.yaml"
    rules.write_text("rules:\n- {id: a, cause: x, match: 'abcdef', needs: [nothing-like-it]}\n")
    with pytest.raises(InputError, match="nothing-like-it"):
        load_rules([rules])


def test_the_pages_are_those_of_the_rules() -> None:
    on_disk = {file.name: file.read_text() for file in (DOCS / "causes").glob("*.md")}
    assert on_disk == dict(pages()), "run: python -m drivetrain.diagnose.pages docs/causes"
