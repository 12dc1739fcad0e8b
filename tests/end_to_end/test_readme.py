"""Every command of the README runs, unless the line above its block says why not."""

import re
import shutil
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def shell_blocks():
    """(reason not to run or None, commands) of each sh block."""
    pattern = r"(?:<!-- not run: (?P<why>.*?) -->\n)?```sh\n(?P<body>.*?)```"
    return [(m["why"], m["body"].strip().splitlines()) for m in re.finditer(pattern, README, re.DOTALL)]


# The two commands are what runs this test, and what CI runs from a clean clone.
FRONT_DOORS = {"make demo", "make test"}
COMMANDS = [
    command
    for why, commands in shell_blocks()
    if why is None
    for command in commands
    if command not in FRONT_DOORS
]


def test_the_front_doors_are_the_makefiles():
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert {"make demo", "make test"} <= {c for _, commands in shell_blocks() for c in commands}
    for command in FRONT_DOORS:
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, re.MULTILINE)


def test_the_task_in_the_readme_is_the_example():
    code = re.search(r"`examples/my_task.py`, whole:\n\n```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    example = (REPOSITORY / "examples" / "my_task.py").read_text(encoding="utf-8")
    assert example.split('"""\n\n', 1)[1] == code[1]


def test_every_place_in_the_tree_exists():
    tree = README[README.index("## The tree") :]
    for name in re.findall(r"^  (\w+)/ ", tree, re.MULTILINE):
        assert (REPOSITORY / "src" / "drivetrain" / name).is_dir(), name
    for name in re.findall(r"^(\w+)/ ", tree, re.MULTILINE):
        assert (REPOSITORY / name).is_dir(), name


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder that looks like the repository to the commands; what they write stays in it."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("recipes", "examples"):
        shutil.copytree(REPOSITORY / name, folder / name)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_runs(shell, checkout, command):
    done = shell(*command.split(), cwd=checkout)
    assert done.code == 0, done.err
