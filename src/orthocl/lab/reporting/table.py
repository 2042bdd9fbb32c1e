"""Tables: mean and spread over seeds, for the terminal, Markdown, LaTeX, CSV and JSON.

The spread is the sample standard deviation (n - 1) over seeds; with one seed there is none. The best of a stream is
marked together with what a paired test over seeds cannot tell from it, and not at all with fewer than three seeds, nor
where all tie. Rows that have learnt nothing are never marked.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rich.console import RenderableType

from orthocl.errors import SettingsError, unknown_name
from orthocl.formatting import size_text, time_text
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.experiment.specs import label_of
from orthocl.lab.reporting.findings import hardly_learnt
from orthocl.lab.reporting.groups import RunGroup, group_runs
from orthocl.lab.reporting.paired import Mark, marks
from orthocl.lab.store.record import Record
from orthocl.metrics import METRICS

Format = Literal["terminal", "markdown", "latex", "csv", "json"]
FORMATS: tuple[Format, ...] = ("terminal", "markdown", "latex", "csv", "json")
DEFAULT_METRICS = ("aac", "bwt", "fwt", "forgetting", "memory")
"""Not the time by the clock on the wall: it says more about the machine than about the method."""

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
    marks: tuple[Mark, ...]
    """Of each cell: "best" of its stream, a "tie" with the best, or nothing."""
    note: str = ""
    """Why there are no numbers."""
    warning: str = ""
    """Why the numbers are not worth much."""


@dataclass(frozen=True)
class Table:
    """Rows by stream and method, columns by metric."""

    metrics: tuple[str, ...]
    rows: tuple[Row, ...]

    def render(self, kind: Format) -> str:
        """As text in a format other than "terminal"; see `rich` for that one."""
        from orthocl.lab.reporting import table_text

        if kind == "terminal" or kind not in FORMATS:
            raise unknown_name("text format", kind, FORMATS[1:])
        return getattr(table_text, f"to_{kind}")(self)  # type: ignore[no-any-return]

    def titles(self) -> list[str]:
        """Column titles of the metrics."""
        return [title(metric) for metric in self.metrics]

    def rich(self) -> RenderableType:
        """For `rich.print`: one table per stream; a narrow terminal gets fewer columns, never fewer digits."""
        from orthocl.lab.reporting.table_text import TerminalTable

        return TerminalTable(self)

    def to_values(self) -> list[dict[str, Any]]:
        """As JSON values, with the value of every seed."""
        return [
            {
                "stream": row.stream,
                "method": row.method,
                "seeds": list(row.seeds),
                "note": row.note,
                "warning": row.warning,
                "metrics": {
                    cell.metric: {
                        "mean": _or_none(cell.mean),
                        "spread": _or_none(cell.spread),
                        "values": [_or_none(value) for value in cell.values],
                        "mark": mark,
                    }
                    for cell, mark in zip(row.cells, row.marks, strict=True)
                },
            }
            for row in self.rows
        ]


def make_table(
    pairs: Iterable[tuple[RunSettings, Record]], metrics: Sequence[str] = DEFAULT_METRICS
) -> Table:
    """A table of runs over seeds: rows by stream, then method, then the settings that differ.

    Args:
        pairs: (run with its labels, record).
        metrics: names of `orthocl.metrics.METRICS`, "seconds", "memory" or "memorised".
    """
    return table_of(group_runs(pairs), metrics)


def table_of(groups: Sequence[RunGroup], metrics: Sequence[str] = DEFAULT_METRICS) -> Table:
    """The table of groups, one row each, in their order."""
    metrics = tuple(metrics) or DEFAULT_METRICS
    for name in metrics:
        check_metric(name)
    rows = [_row(group, metrics) for group in groups]
    return Table(metrics, tuple(_marked(rows, groups)))


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


def _row(group: RunGroup, metrics: Sequence[str]) -> Row:
    finished = group.finished
    cells = tuple(Cell(name, tuple(record.metric(name) for record in finished)) for name in metrics)
    note = "" if finished else next((record.reason for record in group.records), "")
    seeds = tuple(record.settings.seed for record in group.records)
    unmarked: tuple[Mark, ...] = tuple("" for _ in cells)
    return Row(group.stream, group.label, seeds, cells, unmarked, note, hardly_learnt(finished))


def _marked(rows: Sequence[Row], groups: Sequence[RunGroup]) -> list[Row]:
    """The rows with the best of each stream, and what ties with it."""
    found: dict[int, list[Mark]] = {number: list(row.marks) for number, row in enumerate(rows)}
    streams: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        streams.setdefault(row.stream, []).append(number)
    for numbers in streams.values():
        for position, cell in enumerate(rows[numbers[0]].cells):
            if cell.metric in NOT_PERCENT:
                continue
            values = [
                {}
                if rows[number].warning  # who learnt nothing has nothing to forget
                else {
                    record.settings.seed: value
                    for record, value in zip(
                        groups[number].finished, rows[number].cells[position].values, strict=True
                    )
                }
                for number in numbers
            ]
            for number, mark in zip(numbers, marks(values, cell.metric not in LOWER_IS_BETTER), strict=True):
                found[number][position] = mark
    return [replace(row, marks=tuple(found[number])) for number, row in enumerate(rows)]


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
