"""The blocks of the documentation run as they stand, page by page and in order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from orthocl.cli.app import call

DOCS = Path(__file__).parents[2] / "docs"
ELSEWHERE = ("README.md", "theory.md", "trainers.md")
"""How the site is built; theory.md, run by test_theory_guide.py; trainers.md, tested setting by setting elsewhere."""
PAGES = sorted(path for path in DOCS.glob("*.md") if path.name not in ELSEWHERE)
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
UNEXECUTED = "*Not executed by the tests"


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, code) of the blocks that are executed."""
    found = []
    for match in BLOCK.finditer(text):
        before = text[: match.start()].rstrip().rpartition("\n\n")[2]
        if not before.startswith(UNEXECUTED):
            found.append((match.group(1), match.group(2)))
    return found


@pytest.mark.parametrize(
    "page", [path for path in PAGES if blocks(path.read_text())], ids=lambda path: path.stem
)
def test_blocks_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("orthocl.cli.options.DEFAULT_STORE", tmp_path / "orthocl-store")
    names: dict[str, object] = {"__name__": "page"}
    for number, (language, code) in enumerate(blocks(page.read_text()), start=1):
        if language == "python":
            exec(compile(code, f"{page.name} block {number}", "exec", dont_inherit=True), names)
            continue
        for line in code.splitlines():
            if line.startswith("$ "):
                program, *arguments = shlex.split(line[2:])
                assert program == "orthocl", f"{page.name}: {line} cannot be executed: say why in the page"
                assert call(arguments) == 0, f"{line}\n{capsys.readouterr().err}"


def test_a_block_that_is_not_executed_has_a_reason():
    text = "".join(page.read_text() for page in PAGES)
    reasons = [line for line in text.splitlines() if line.startswith(UNEXECUTED)]
    assert len(reasons) >= 5
    assert all(len(line.partition(":")[2]) > 10 for line in reasons)


def test_the_marker_is_what_leaves_a_block_out():
    code = "```python\n1 / 0\n```\n"
    assert blocks(f"text\n\n{code}") == [("python", "1 / 0\n")]
    assert blocks(f"{UNEXECUTED}: it divides by zero.*\n\n{code}") == []


def test_every_page_is_in_the_contents():
    contents = (DOCS.parent / "mkdocs.yml").read_text()
    assert [
        page.name
        for page in [*PAGES, DOCS / "theory.md", DOCS / "trainers.md"]
        if f": {page.name}" not in contents
    ] == []
