"""Tables on narrow terminals."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from orthocl.cli.fitting import fitted
from orthocl.cli.output import new_table

NUMBERS = [f"{number}.123456" for number in range(10, 20)]


@pytest.mark.parametrize("width", [200, 80, 60, 40, 20])
def test_no_digit_and_no_column_is_lost(width):
    heads = [f"a long title {number}" for number in range(10)]
    table = new_table("name", *heads, "remark", title="numbers", right=heads)
    table.add_row("first", *NUMBERS, "some words that may be wrapped")
    out = io.StringIO()
    console = Console(file=out, width=width)
    for part in fitted(table, width):
        console.print(part)
    lines = out.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    assert all(number in out.getvalue() for number in NUMBERS)
    assert "…" not in out.getvalue()
    assert {"words", "wrapped"} <= set(out.getvalue().split())


def test_a_table_that_fits_is_left_alone():
    table = new_table("name", "value", right=["value"])
    table.add_row("a", "1.0")
    assert fitted(table, 60) == [table]
    assert table.columns[0].width is None
