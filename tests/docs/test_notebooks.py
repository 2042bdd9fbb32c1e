"""The notebooks run from the first to the last cell, and are kept with their outputs."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_two():
    assert [path.stem for path in NOTEBOOKS] == ["theory", "tour"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_are_kept_executed_and_small(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells)
    assert path.stat().st_size < 50_000


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_run(path):
    pytest.importorskip("nbclient", reason="needs the extra docs")
    pytest.importorskip("ipykernel", reason="needs the extra docs")
    done = runpy.run_path(str(FOLDER / "execute.py"))["execute"](path)
    assert all(output.output_type != "error" for cell in done.cells for output in cell.get("outputs", ()))
