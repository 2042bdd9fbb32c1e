"""A table as text: for the terminal, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from orthocl.formatting import plain_text
from orthocl.lab.reporting.escaping import csv_text, latex_text, markdown_text
from orthocl.lab.reporting.table import Row, Table
from orthocl.palette import method_style

STYLES = {"": "", "best": "bold green", "tie": "green"}
LEAVE_OUT = ("memory", "seconds", "fwt", "bwt", "forgetting")
"""Columns that a narrow terminal does without, first to go first; then those from the right."""
BEST = "best of its stream"
TIED = "a paired t test over seeds (5 %) cannot tell it from the best"


class TerminalTable:
    """One table per stream. Where the width is too small, columns are left out and named: no number loses a digit."""

    def __init__(self, table: Table):
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """The tables of all streams with the columns that fit, then warnings."""
        table = self.table
        streams = list(dict.fromkeys(row.stream for row in table.rows))
        shown = list(range(len(table.metrics)))
        for metric in [*LEAVE_OUT, *reversed(table.metrics)]:
            drawn = [self._stream(stream, shown) for stream in streams]
            unbounded = options.update(max_width=10_000)
            widest = max((Measurement.get(console, unbounded, one).minimum for one in drawn), default=0)
            if widest <= options.max_width or len(shown) == 1:
                break
            if metric in table.metrics and table.metrics.index(metric) in shown:
                shown.remove(table.metrics.index(metric))
        yield from (self._stream(stream, shown) for stream in streams)
        left_out = [name for number, name in enumerate(table.titles()) if number not in shown]
        if left_out:
            yield Text(f"left out for want of width: {', '.join(left_out)}", style="dim")
        if _marked(table):
            yield Text(f"bold green: {BEST}; green: {TIED}", style="dim")
        for row in table.rows:
            if row.warning:
                yield Text(plain_text(f"{row.stream}, {row.method}: {row.warning}"), style="yellow")

    def _stream(self, stream: str, shown: Sequence[int]) -> RichTable:
        rows = [row for row in self.table.rows if row.stream == stream]
        seeds = sorted({len(row.seeds) for row in rows})
        counted = f"{'-'.join(map(str, seeds))} seed{'s' if seeds != [1] else ''}"
        made = RichTable(
            title=Text(f"{plain_text(stream)}, {counted}"),
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE,
            padding=(0, 1),
        )
        made.add_column(
            "method", overflow="fold", min_width=min(14, 2 + max(len(row.method) for row in rows))
        )
        titles = self.table.titles()
        for number in shown:
            made.add_column(titles[number].replace("Forgetting", "Forget."), justify="right", no_wrap=True)
        for row in rows:
            made.add_row(_named(row.method), *self._cells(row, shown))
        return made

    def _cells(self, row: Row, shown: Sequence[int]) -> list[Text]:
        if row.note:
            return [Text("unsupported", style="yellow"), *(Text("–") for _ in shown[1:])]
        return [Text(row.cells[at].text("±", digits=1), style=STYLES[row.marks[at]]) for at in shown]


def _named(method: str) -> Text:
    """A method with its colour, the same as in figures and pages."""
    return Text.assemble(("● ", method_style(method)[0]), plain_text(method))


def to_markdown(table: Table) -> str:
    """A Markdown table, the best of each stream in bold, its ties with a dagger, and notes below."""
    lines = [["stream", "method", "seeds", *table.titles()]]
    for row in table.rows:
        around = {"best": "**{}**", "tie": "{} †", "": "{}"}
        cells = [around[mark].format(cell.text()) for cell, mark in zip(row.cells, row.marks, strict=True)]
        lines.append([markdown_text(row.stream), markdown_text(row.method), str(len(row.seeds)), *cells])
    body = ["| " + " | ".join(line) + " |" for line in lines]
    body.insert(1, "| --- | --- | --- |" + " ---: |" * len(table.metrics))
    notes = [f"\nBold: {BEST}. †: {TIED}."] if _marked(table) else []
    for row in table.rows:
        about = f"\n{markdown_text(row.stream)}, {markdown_text(row.method)}: "
        notes += [f"{about}unsupported, {markdown_text(row.note)}"] if row.note else []
        notes += [about + markdown_text(row.warning)] if row.warning else []
    return "\n".join([*body, *notes])


def to_latex(table: Table) -> str:
    """A LaTeX tabular with booktabs rules, the best of each stream in bold and its ties with a dagger."""
    lines = [r"\begin{tabular}{ll" + "r" * len(table.metrics) + "}", r"\toprule"]
    heads = ["stream", "method", *(latex_text(name).replace(r"\%", r"(\%)") for name in table.titles())]
    lines += [" & ".join(heads) + r" \\", r"\midrule"]
    previous = table.rows[0].stream if table.rows else ""
    for row in table.rows:
        if row.stream != previous:
            lines.append(r"\midrule")
            previous = row.stream
        cells = []
        for cell, mark in zip(row.cells, row.marks, strict=True):
            text = latex_text(cell.text())
            around = {"best": rf"\textbf{{{text}}}", "tie": rf"{text}$^\dagger$", "": text}
            cells.append(around[mark])
        lines.append(" & ".join([latex_text(row.stream), latex_text(row.method), *cells]) + r" \\")
    notes = [f"% bold: {latex_text(BEST)}; dagger: {latex_text(TIED)}"] if _marked(table) else []
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes])


def _marked(table: Table) -> bool:
    return any(mark for row in table.rows for mark in row.marks)


def to_csv(table: Table) -> str:
    """Numbers at full precision: mean and spread of each metric, accuracies as shares of 1."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    spread = [name for metric in table.metrics for name in (metric, f"{metric} spread")]
    writer.writerow(["stream", "method", "seeds", *map(csv_text, spread), "note"])
    for row in table.rows:
        numbers = [_or_empty(number) for cell in row.cells for number in (cell.mean, cell.spread)]
        note = csv_text(row.note or row.warning)
        seeds = " ".join(map(str, row.seeds))
        writer.writerow([csv_text(row.stream), csv_text(row.method), csv_text(seeds), *numbers, note])
    return out.getvalue()


def to_json(table: Table) -> str:
    """JSON text with the value of every seed."""
    return json.dumps(table.to_values(), indent=1)


def _or_empty(value: float) -> str:
    return "" if math.isnan(value) else repr(value)
