"""What commands print: for people, for scripts (`--json`), or only the result (`--quiet`).

Every command prints through this module, so that both options work everywhere, every table looks the same, and every
command can end with a line that says what to do next.

    results   standard output: tables for people, or one JSON object with --json
    remarks   standard error: progress, "wrote ...", next steps; silent with --json and --quiet
    problems  standard error, always: errors, warnings, failed runs
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from orthocl.cli.fitting import fitted
from orthocl.formatting import without_control


@dataclass(frozen=True)
class Manners:
    """How the present command prints.

    Args:
        json: one JSON object instead of tables.
        quiet: no remarks.
        found: what `--json` prints at the end.
    """

    json: bool = False
    quiet: bool = False
    found: dict[str, Any] = field(default_factory=dict)


_MANNERS: ContextVar[Manners] = ContextVar("manners")


@contextmanager
def manners_of(json: bool, quiet: bool) -> Iterator[Manners]:
    """While the block lasts, commands print like this; at its end comes the JSON, if any."""
    chosen = Manners(json, quiet)
    token = _MANNERS.set(chosen)
    try:
        try:
            yield chosen
        except SystemExit:  # a command that ends with an exit code has results too
            _print_found(chosen)
            raise
        _print_found(chosen)
    finally:
        _MANNERS.reset(token)


def _print_found(chosen: Manners) -> None:
    if chosen.json and chosen.found:
        print(json_text(chosen.found))


class Terminal(Console):
    """A console that no text of somebody else (a path, a name, a reason) can steer: every command prints on one."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The pieces of what is printed, without control characters but rich's own."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else without_control(text), style, control)


def manners() -> Manners:
    """How to print now; for people, unless `manners_of` says otherwise."""
    return _MANNERS.get(Manners())


def silent() -> bool:
    """Whether remarks are left out."""
    return manners().json or manners().quiet


def results() -> Console:
    """Where results for people go: nothing is shown with --json."""
    return Terminal(quiet=manners().json)


def remarks() -> Console:
    """Where progress and remarks go: nothing is shown with --json or --quiet."""
    return Terminal(stderr=True, quiet=silent())


def say(text: str, style: str = "") -> None:
    """A line among the results; no part of the JSON."""
    results().print(escape(text), style=style, highlight=False, soft_wrap=True)


def remark(text: str) -> None:
    """A line on the error stream that nobody needs in order to use the results."""
    remarks().print(escape(text), highlight=False, soft_wrap=True)


def suggest(*commands: str) -> None:
    """What to do next, as the last line of a command."""
    for command in commands:
        remark(f"next: {command}")


def report(**facts: Any) -> None:
    """Facts for --json, by name."""
    manners().found.update(facts)


def new_table(*columns: str, title: str = "", right: Sequence[str] = ()) -> Table:
    """A table in the one style of all commands.

    Args:
        columns: titles.
        title: above the table.
        right: columns of numbers.
    """
    table = Table(title=escape(title) if title else None, title_justify="left", box=box.SIMPLE)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    return table


def show(
    table: RenderableType, rows: Sequence[Mapping[str, Any]] | None = None, *, name: str = "rows"
) -> None:
    """Print a table, or put its rows into the JSON.

    Args:
        table: for people.
        rows: the same for scripts, as plain values; by default the texts of the cells.
        name: of the rows in the JSON; rows of the same name follow each other.
    """
    if not manners().json:
        draw(table)
        return
    if rows is None:
        rows = _cells(table) if isinstance(table, Table) else []
    manners().found.setdefault(name, []).extend(dict(row) for row in rows)


def draw(table: RenderableType) -> None:
    """Print a table for people, so that it fits the terminal."""
    console = results()
    for part in fitted(table, console.width) if isinstance(table, Table) else [table]:
        console.print(part)


def _cells(table: Table) -> list[dict[str, str]]:
    """The texts of a table by column.

    >>> table = new_table("task", "accuracy")
    >>> table.add_row("1", "[bold]98.0[/]")
    >>> _cells(table)
    [{'task': '1', 'accuracy': '98.0'}]
    """
    names = [_plain(column.header) or "name" for column in table.columns]
    columns = [[_plain(cell) for cell in column.cells] for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _plain(cell: RenderableType) -> str:
    return Text.from_markup(cell).plain if isinstance(cell, str) else str(cell)


def json_text(value: Any) -> str:
    """JSON that every reader accepts: NaN and infinities, which JSON lacks, are null, paths are texts.

    >>> print(json_text({"a": float("nan"), "b": (1, 2)}))
    {
      "a": null,
      "b": [
        1,
        2
      ]
    }
    """
    return json.dumps(_finite(value), indent=2, default=str, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
