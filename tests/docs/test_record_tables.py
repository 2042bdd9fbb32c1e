"""Pages show the records that are kept."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from orthocl.lab.reporting.figure import make_figure
from orthocl.plotting import save_figure

MADE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "record_tables.py"))


def texts(path):
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())


@pytest.mark.parametrize("page", MADE["PAGES"], ids=lambda page: page.stem)
def test_the_tables_are_those_of_the_records(page):
    assert MADE["MARKED"].search(page.read_text())
    assert page.read_text() == MADE["updated"](page)


@pytest.mark.parametrize(("name", "file"), MADE["FIGURES"].items())
def test_the_figures_show_the_same_methods_and_streams(tmp_path, name, file):
    made = save_figure(make_figure(name, MADE["pairs"]()), tmp_path / file)
    assert texts(made) == texts(MADE["HERE"] / "figures" / file)
    assert "permuted-10, %" in texts(made)
