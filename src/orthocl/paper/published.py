"""What the paper prints: every number of its tables with its place, and what it says about its figures."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from orthocl.errors import unknown_name

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

SEEDS = 5
"""Runs behind every printed mean."""


@dataclass(frozen=True)
class Printed:
    """One printed number (or word), with its place.

    Args:
        item: the table, such as "table-2".
        row: the row's heading in the print.
        column: the column's heading in the print.
        method: label of the method here; empty if the number belongs to none.
        stream: label of the stream here.
        metric: "aac", "bwt", "fwt", "afm" (with the sign of the print), "accuracy" or "over-parameterisation".
        task: number of the task, for the accuracy on one.
        mean: the number; None for words.
        spread: the printed deviation; None without one.
        text: the word, for properties and hyperparameters.
        best: whether it is set in bold.
    """

    item: str
    row: str
    column: str
    method: str = ""
    stream: str = ""
    metric: str = ""
    task: int | None = None
    mean: float | None = None
    spread: float | None = None
    text: str = ""
    best: bool = False


@dataclass(frozen=True)
class PublishedItem:
    """A table or figure as printed.

    Args:
        name: such as "table-2".
        label: in the LaTeX source.
        caption: what it shows.
        claim: what the paper says that it shows, for figures.
        cells: its numbers, row by row; none for figures, which are plots.
    """

    name: str
    label: str
    caption: str
    claim: str = ""
    cells: tuple[Printed, ...] = ()


@cache
def published() -> dict[str, PublishedItem]:
    """Everything recorded of the print, by the name of the table or figure.

    >>> len(published()["table-2"].cells), published()["figure-4"].label
    (28, 'fig:app-mem-size-perm')
    """
    text = (resources.files("orthocl.paper") / "published.toml").read_text(encoding="utf-8")
    tables: dict[str, Any] = tomllib.loads(text)
    return {name: _item(name, table) for name, table in tables.items() if isinstance(table, dict)}


def published_item(name: str) -> PublishedItem:
    """One table or figure as printed."""
    if name not in published():
        raise unknown_name("table or figure", name, published())
    return published()[name]


def find_printed(item: str, stream: str, method: str, metric: str, task: int | None = None) -> Printed | None:
    """The printed number of this place, if there is one.

    >>> find_printed("table-2", "permuted-mnist", "ogd+", "aac").mean
    88.65
    """
    for cell in published_item(item).cells:
        if (cell.stream, cell.method, cell.metric, cell.task) == (stream, method, metric, task):
            return cell
    return None


def _item(name: str, table: dict[str, Any]) -> PublishedItem:
    cells = tuple(Printed(item=name, **cell) for cell in table.get("cells", ()))
    return PublishedItem(name, table["label"], table["caption"], table.get("claim", ""), cells)
