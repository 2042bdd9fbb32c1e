"""PAPER.md: every row names a file, a symbol, a test and a command that exist."""

import ast
import re
from pathlib import Path

import pytest
from cyclopts import CycloptsError

from orthocl.cli.app import make_app

APP = make_app()
ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "PAPER.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("|") and not line.startswith("| item") and not set(line) <= set("|- ")
]
# Every numbered statement, algorithm, table and figure of the paper.
NUMBERED = (
    [
        "Theorem 1",
        "Theorem 2",
        "Theorem 3",
        "Theorem 4",
        "Corollary 1",
        "Remark 1",
        "Remark 2",
        "Proposition 1",
        "Algorithm 1",
    ]
    + [f"Lemma {n}" for n in range(1, 10)]
    + [f"Table {n}" for n in range(1, 13)]
    + [f"Figure {n}" for n in range(1, 7)]
)


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def definitions(path: Path) -> set[str]:
    """Names that a Python file defines, methods as Class.method."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_every_numbered_item_has_a_row():
    items = " ".join(row[0] for row in ROWS)
    assert [name for name in NUMBERED if not re.search(rf"\b{name}\b", items)] == []


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_row_points_at_things_that_exist(row):
    item, what, files, symbols, tests, commands = row
    assert item
    assert what
    assert code(files), "no file"
    named: set[str] = set()
    for name in code(files):
        path = ROOT / name
        assert path.is_file(), name
        if path.suffix == ".py":
            named |= definitions(path)
    for symbol in code(symbols):
        assert symbol in named, f"{symbol} is not defined in {code(files)}"
    assert code(tests), "no test"
    for test in code(tests):
        path, _, function = test.partition("::")
        assert (ROOT / path).is_file(), test
        assert not function or f"def {function}(" in (ROOT / path).read_text(), test
    for command in code(commands):
        words = command.split()
        assert words[0] in ("orthocl", "python", "make"), command
        for word in words[1:]:
            if word.endswith((".toml", ".py")):
                assert (ROOT / word).is_file(), command
        if words[0] == "orthocl":  # raises for a command or an option that does not exist
            APP.parse_args(words[1:], exit_on_error=False, print_error=False)


def test_a_command_that_does_not_exist_would_be_noticed():
    for wrong in (["theory", "boud"], ["theory", "bound", "--forms", "printed"]):
        with pytest.raises(CycloptsError):
            APP.parse_args(wrong, exit_on_error=False, print_error=False)
