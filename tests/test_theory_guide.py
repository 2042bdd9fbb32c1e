"""The guide's code runs as it stands."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[1] / "docs" / "theory.md").read_text()


def test_python_blocks_run_in_order(capsys):
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert names["best"].exact
    assert names["solution"].dissimilarity(3) > 0
    assert names["found"].smallest.value > 0
    text = capsys.readouterr().out
    assert "OutputDrift(task=1" in text
    assert "gpm" in text


def test_commands_exist():
    from orthocl.cli.theory import app

    for command in re.findall(r"^orthocl theory (\w+)", TEXT, re.MULTILINE):
        assert command in app
