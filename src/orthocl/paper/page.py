"""Page: a table or figure of the paper with our numbers, the verdicts and what is missing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from orthocl.errors import unknown_name
from orthocl.formatting import counted
from orthocl.paper.claims import Status, Verdict
from orthocl.paper.comparison import Comparison, csv_rows, latex_table, markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TextFormat = Literal["markdown", "latex", "csv", "json"]
TEXT_FORMATS: tuple[TextFormat, ...] = ("markdown", "latex", "csv", "json")
STYLES: dict[Status, str] = {
    "holds": "green",
    "holds with a condition": "yellow",
    "does not hold": "red",
    "undecided": "dim",
    "not run": "dim",
}
COUNTED: dict[Status, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "holds with a condition": ("holds with a condition", "hold with a condition"),
    "does not hold": ("does not hold", "do not hold"),
    "undecided": ("is undecided", "are undecided"),
    "not run": ("was not run", "were not run"),
}
"""How one claim, and several, are counted."""


@dataclass(frozen=True)
class WordTable:
    """A table of words: heading row first."""

    title: str
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Page:
    """Everything about one table or figure.

    Args:
        name: such as "table-2".
        title: a heading.
        caption: what the paper's item shows.
        comparisons: our numbers and the printed ones.
        words: tables of words.
        verdicts: on the claims.
        draw: makes the figure; None for tables, and where there is nothing to draw yet.
        notes: sentences below.
    """

    name: str
    title: str
    caption: str = ""
    comparisons: tuple[Comparison, ...] = ()
    words: tuple[WordTable, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    draw: Callable[[], Figure] | None = None
    notes: tuple[str, ...] = ()

    def render(self, kind: TextFormat) -> str:
        """As text."""
        if kind == "markdown":
            return self.to_markdown()
        if kind == "latex":
            return self.to_latex()
        if kind == "csv":
            return csv_rows(self.comparisons)
        if kind == "json":
            return json.dumps(self.to_values(), indent=1)
        raise unknown_name("text format", kind, TEXT_FORMATS)

    def to_markdown(self, level: int = 2, figure: str = "") -> str:
        """Markdown, with headings from this level on and the figure at this path if there is one."""
        parts = [f"{'#' * level} {self.title}"]
        if self.caption:
            parts.append(self.caption)
        if figure:
            parts.append(f"![{self.title}]({figure})")
        several = len(self.comparisons) + len(self.words) > 1 or self.draw is not None
        for comparison in self.comparisons:
            if several:
                parts.append(f"**{comparison.title}**")
            parts.append(comparison.to_markdown())
        for words in self.words:
            if several:
                parts.append(f"**{words.title}**")
            parts.append(markdown_table(words.rows, numbers_from=len(words.rows[0])))
        if self.verdicts:
            parts.append(verdict_table(self.verdicts))
        parts += self.notes
        return "\n\n".join(parts) + "\n"

    def to_latex(self) -> str:
        """One tabular per table, then the verdicts as comments."""
        parts = [f"% {self.title}"]
        for comparison in self.comparisons:
            parts.append(f"% {comparison.title}\n{comparison.to_latex()}")
        parts += [f"% {words.title}\n{latex_table(words.rows)}" for words in self.words]
        parts += [f"% {verdict.claim}: {verdict.text} ({verdict.detail})" for verdict in self.verdicts]
        return "\n\n".join(parts)

    def to_values(self) -> dict[str, object]:
        """As JSON values."""
        return {
            "item": self.name,
            "title": self.title,
            "caption": self.caption,
            "tables": [
                {"title": comparison.title, "rows": comparison.to_values()} for comparison in self.comparisons
            ],
            "words": [
                {"title": words.title, "rows": [list(row) for row in words.rows]} for words in self.words
            ],
            "verdicts": [vars(verdict) for verdict in self.verdicts],
            "notes": list(self.notes),
        }

    def rich(self) -> Group:
        """For the terminal."""
        parts: list[RenderableType] = [Text(self.title, style="bold")]
        for comparison in self.comparisons:
            parts.append(_rich_table(comparison.title, comparison.rows(), comparison.numbers_from))
            parts += [Text(note, style="dim") for note in comparison.notes()]
        parts += [_rich_table(words.title, words.rows, len(words.rows[0])) for words in self.words]
        for verdict in self.verdicts:
            text = Text(f"{verdict.status}", style=f"bold {STYLES[verdict.status]}")
            text.append(f"  {verdict.claim} ({verdict.place})", style="default")
            text.append(f"; {verdict.condition}\n" if verdict.condition else "\n", style="default")
            text.append(f"    {verdict.detail}", style="dim")
            parts.append(text)
        parts += [Text(note) for note in self.notes]
        return Group(*parts)


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """Claims, verdicts and numbers as a Markdown table."""
    rows = [("claim", "where", "verdict", "numbers")]
    rows += [(verdict.claim, verdict.place, verdict_cell(verdict), verdict.detail) for verdict in verdicts]
    return markdown_table(rows, numbers_from=4)


def verdict_cell(verdict: Verdict) -> str:
    """A verdict in bold, with its condition in the same line."""
    return f"**{verdict.status}**" + (f": {verdict.condition}" if verdict.condition else "")


def count_verdicts(verdicts: Sequence[Verdict]) -> str:
    """How many claims hold, and how many do not, as a sentence without its full stop.

    >>> count_verdicts([Verdict("c", "p", "holds", "")])
    '1 claim: 1 holds'
    """
    count = Counter(verdict.status for verdict in verdicts)
    parts = [
        f"{count[status]} {words[count[status] > 1]}" for status, words in COUNTED.items() if count[status]
    ]
    return f"{counted(len(verdicts), 'claim')}: {', '.join(parts)}"


def _rich_table(title: str, rows: Sequence[Sequence[str]], numbers_from: int) -> RichTable:
    table = RichTable(title=Text(title), title_justify="left", title_style="bold", box=box.SIMPLE)
    for number, name in enumerate(rows[0]):
        table.add_column(name, justify="left" if number < numbers_from else "right", overflow="fold")
    for row in rows[1:]:
        table.add_row(*(Text(cell) for cell in row))
    return table
