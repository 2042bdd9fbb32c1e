"""Tables: mean and spread over seeds, for the terminal, Markdown, LaTeX, CSV and JSON.

The spread is the sample standard deviation (n - 1) over seeds; with one seed there is none.
"""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich import box
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from orthocl.errors import SettingsError, unknown_name
from orthocl.formatting import for_spreadsheets, printable, size_text, time_text
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.experiment.specs import label_of
from orthocl.lab.store.record import Record
from orthocl.metrics import METRICS

Format = Literal["terminal", "markdown", "latex", "csv", "json"]
FORMATS: tuple[Format, ...] = ("terminal", "markdown", "latex", "csv", "json")
DEFAULT_METRICS = ("aac", "bwt", "fwt", "forgetting", "seconds", "memory")

TITLES = {
    "aac": "AAC %",
    "bwt": "BWT %",
    "fwt": "FWT %",
    "forgetting": "Forgetting %",
    "seconds": "Time",
    "memory": "Memory",
    "memorised": "Memorised variation %",
    "learning-accuracy": "Learning accuracy %",
}
LOWER_IS_BETTER = (
    "forgetting",
    "forgetting-since-learnt",
    "forgetting-with-last",
    "forgetting-first-minus-last",
)
NOT_PERCENT = ("seconds", "memory")
OF_RECORDS = ("seconds", "memory", "memorised")
"""What a record knows besides the metrics of its accuracy matrix."""


@dataclass(frozen=True)
class Cell:
    """A metric over seeds."""

    metric: str
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over seeds; NaN without values."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def spread(self) -> float:
        """Sample standard deviation (n - 1) over seeds; NaN with fewer than two.

        >>> round(Cell("aac", (0.5, 0.7)).spread, 6)
        0.141421
        """
        if len(self.values) < 2 or any(math.isnan(value) for value in self.values):
            return math.nan
        return statistics.stdev(self.values)

    def text(self, plus_minus: str = " ± ", digits: int = 2) -> str:
        """For people: percent, time or size.

        >>> Cell("aac", (0.5, 0.7)).text(), Cell("memory", (2048.0,)).text(), Cell("seconds", (75.0,)).text()
        ('60.00 ± 14.14', '2.05 kB', '1 min 15 s')
        """
        if math.isnan(self.mean):
            return "–"
        if self.metric == "memory":
            return size_text(self.mean)
        if self.metric == "seconds":
            return time_text(self.mean)
        mean = f"{100 * self.mean:.{digits}f}"
        return mean if math.isnan(self.spread) else f"{mean}{plus_minus}{100 * self.spread:.{digits}f}"


@dataclass(frozen=True)
class Row:
    """One method on one stream, over seeds."""

    stream: str
    method: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    best: tuple[bool, ...]
    """Whether each cell is the best of its stream."""
    note: str = ""
    """Why there are no numbers."""


@dataclass(frozen=True)
class Table:
    """Rows by stream and method, columns by metric."""

    metrics: tuple[str, ...]
    rows: tuple[Row, ...]

    def render(self, kind: Format) -> str:
        """As text in a format other than "terminal"; see `rich` for that one."""
        if kind == "markdown":
            return self.to_markdown()
        if kind == "latex":
            return self.to_latex()
        if kind == "csv":
            return self.to_csv()
        if kind == "json":
            return json.dumps(self.to_values(), indent=1)
        raise unknown_name("text format", kind, FORMATS[1:])

    def titles(self) -> list[str]:
        """Column titles of the metrics."""
        return [title(metric) for metric in self.metrics]

    def rich(self) -> Group:
        """For `rich.print`: one table per stream, narrow enough for 80 columns."""
        streams = dict.fromkeys(row.stream for row in self.rows)
        return Group(*(self._rich_stream(stream) for stream in streams))

    def _rich_stream(self, stream: str) -> RichTable:
        rows = [row for row in self.rows if row.stream == stream]
        seeds = sorted({len(row.seeds) for row in rows})
        counted = f"{'-'.join(map(str, seeds))} seed{'s' if seeds != [1] else ''}"
        table = RichTable(
            title=Text(printable(f"{stream}, {counted}")),
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE,
        )
        table.add_column("method", overflow="fold", min_width=min(12, max(len(row.method) for row in rows)))
        for name in self.titles():
            table.add_column(name.replace("Forgetting", "Forget."), justify="right")
        for row in rows:
            cells = [
                Text(cell.text("±", digits=1), style="bold green" if best else "")
                for cell, best in zip(row.cells, row.best, strict=True)
            ]
            if row.note:
                cells[0] = Text("unsupported", style="yellow")
            table.add_row(Text(printable(row.method)), *cells)
        return table

    def to_markdown(self) -> str:
        """A Markdown table, the best accuracy of each stream in bold, with notes below."""
        lines = [["stream", "method", "seeds", *self.titles()]]
        for row in self.rows:
            cells = [
                f"**{cell.text()}**" if best else cell.text()
                for cell, best in zip(row.cells, row.best, strict=True)
            ]
            lines.append([_markdown(row.stream), _markdown(row.method), str(len(row.seeds)), *cells])
        body = ["| " + " | ".join(line) + " |" for line in lines]
        body.insert(1, "| --- | --- | --- |" + " ---: |" * len(self.metrics))
        notes = [
            f"\n{_markdown(row.stream)}, {_markdown(row.method)}: unsupported, {printable(row.note)}"
            for row in self.rows
            if row.note
        ]
        return "\n".join([*body, *notes])

    def to_latex(self) -> str:
        """A LaTeX tabular with booktabs rules."""
        lines = [r"\begin{tabular}{ll" + "r" * len(self.metrics) + "}", r"\toprule"]
        heads = ["stream", "method", *(name.replace("%", r"(\%)") for name in self.titles())]
        lines += [" & ".join(heads) + r" \\", r"\midrule"]
        previous = self.rows[0].stream if self.rows else ""
        for row in self.rows:
            if row.stream != previous:
                lines.append(r"\midrule")
                previous = row.stream
            cells = []
            for cell, best in zip(row.cells, row.best, strict=True):
                text = cell.text(r" $\pm$ ").replace("–", "--")
                cells.append(rf"\textbf{{{text}}}" if best else text)
            lines.append(" & ".join([_latex(row.stream), _latex(row.method), *cells]) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])

    def to_csv(self) -> str:
        """Numbers at full precision: mean and spread of each metric, accuracies as shares of 1."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        spread = [name for metric in self.metrics for name in (metric, f"{metric} spread")]
        writer.writerow(["stream", "method", "seeds", *spread, "note"])
        for row in self.rows:
            numbers = [_or_empty(number) for cell in row.cells for number in (cell.mean, cell.spread)]
            words = [for_spreadsheets(text) for text in (row.stream, row.method, row.note)]
            writer.writerow([*words[:2], " ".join(map(str, row.seeds)), *numbers, words[2]])
        return out.getvalue()

    def to_values(self) -> list[dict[str, Any]]:
        """As JSON values, with the value of every seed."""
        return [
            {
                "stream": row.stream,
                "method": row.method,
                "seeds": list(row.seeds),
                "note": row.note,
                "metrics": {
                    cell.metric: {
                        "mean": _or_none(cell.mean),
                        "spread": _or_none(cell.spread),
                        "values": [_or_none(value) for value in cell.values],
                    }
                    for cell in row.cells
                },
            }
            for row in self.rows
        ]


def make_table(
    pairs: Iterable[tuple[RunSettings, Record]], metrics: Sequence[str] = DEFAULT_METRICS
) -> Table:
    """A table of runs: one row per stream and method, in the order given, over seeds.

    Args:
        pairs: (run with its labels, record).
        metrics: names of `orthocl.metrics.METRICS`, "seconds", "memory" or "memorised".
    """
    metrics = tuple(metrics) or DEFAULT_METRICS
    for name in metrics:
        check_metric(name)
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for settings, record in pairs:
        stream = settings.stream_label or settings.stream.name
        method = settings.method_label or settings.method.name
        groups.setdefault((stream, method, record.settings.without_seed()), []).append(record)
    rows = [_row(stream, method, records, metrics) for (stream, method, _), records in groups.items()]
    return Table(metrics, tuple(_mark_best(rows)))


def check_metric(name: object) -> None:
    """Reject an unknown metric before hours of computing, not after them."""
    if not isinstance(name, str):
        raise SettingsError(f"a metric is given by its name, got {name!r}")
    if name in OF_RECORDS or name in METRICS:
        return
    if ":" in name or name.endswith(".py"):
        METRICS.find(name)
        return
    raise unknown_name("metric", name, [*METRICS, *OF_RECORDS], "or your own as file.py:function")


def title(metric: str) -> str:
    """Column title of a metric."""
    return TITLES.get(metric, metric if metric in NOT_PERCENT else f"{label_of(metric)} %")


def _row(stream: str, method: str, records: Sequence[Record], metrics: Sequence[str]) -> Row:
    finished = [record for record in records if record.status == "finished"]
    cells = tuple(Cell(name, tuple(record.metric(name) for record in finished)) for name in metrics)
    note = "" if finished else next((record.reason for record in records), "")
    seeds = tuple(record.settings.seed for record in records)
    return Row(stream, method, seeds, cells, (False,) * len(cells), note)


def _mark_best(rows: Sequence[Row]) -> list[Row]:
    marked = []
    for row in rows:
        peers = [other for other in rows if other.stream == row.stream]
        marks = []
        for position, cell in enumerate(row.cells):
            sign = -1 if cell.metric in LOWER_IS_BETTER else 1
            rivals = [sign * peer.cells[position].mean for peer in peers]
            rivals = [value for value in rivals if not math.isnan(value)]
            worth = cell.metric not in NOT_PERCENT and len(rivals) > 1
            marks.append(worth and sign * cell.mean == max(rivals))
        marked.append(Row(row.stream, row.method, row.seeds, row.cells, tuple(marks), row.note))
    return marked


_LATEX = {
    **{character: "\\" + character for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in printable(text))


def _markdown(text: str) -> str:
    return printable(text).replace("|", r"\|")


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _or_empty(value: float) -> str:
    return "" if math.isnan(value) else repr(value)
