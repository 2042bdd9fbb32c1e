"""Comparison: our numbers, the printed ones and those of the authors' code, as text in several formats."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orthocl.paper.authors import AuthorsValue
from orthocl.paper.published import Printed
from orthocl.paper.samples import Sample, number_text, standard_errors_apart

HEADINGS = ("stream", "method", "what", "ours", "seeds", "print", "difference", "in SE", "authors' runs")


@dataclass(frozen=True)
class Line:
    """One number of ours with those to compare it with.

    Args:
        stream: label of the stream.
        method: label of the method.
        what: the quantity, as the print heads its column.
        ours: over seeds, in the units and signs of the print.
        printed: the printed number.
        authors: what the authors' own code gave.
        digits: decimals to show.
    """

    stream: str
    method: str
    what: str
    ours: Sample
    printed: Printed | None = None
    authors: AuthorsValue | None = None
    digits: int = 2

    @property
    def difference(self) -> float:
        """Ours minus the print; NaN if either is not there."""
        if self.printed is None or self.printed.mean is None or not len(self.ours):
            return math.nan
        return self.ours.mean - self.printed.mean

    @property
    def errors_apart(self) -> float:
        """The same in standard errors."""
        return standard_errors_apart(self.ours, self.printed)

    def texts(self) -> list[str]:
        """The cells of a row under `HEADINGS`."""
        apart = self.errors_apart
        mark = " †" if len(self.ours) == 1 and not math.isnan(apart) else ""
        return [
            self.stream,
            self.method,
            self.what,
            self.ours.text(self.digits),
            str(len(self.ours)) if len(self.ours) else "",
            printed_text(self.printed, self.digits),
            "" if math.isnan(self.difference) else f"{self.difference:+.{self.digits}f}",
            "" if math.isnan(apart) else f"{apart:+.1f}{mark}",
            "" if self.authors is None else number_text(self.authors.value, self.digits),
        ]


@dataclass(frozen=True)
class Comparison:
    """Lines under a title.

    Args:
        title: of the table.
        lines: its numbers.
        comparable: whether the printed numbers are for the same problem.
        across: methods side by side, one row per stream and quantity.
    """

    title: str
    lines: tuple[Line, ...]
    comparable: bool = True
    across: bool = False

    def rows(self) -> list[list[str]]:
        """Texts of all lines, without columns that are empty, or that name the one stream or quantity there is."""
        if self.across:
            return self._rows_across()
        rows = [list(HEADINGS), *(line.texts() for line in self.lines)]
        if not self.comparable:
            rows = [[*row[:6], "", "", *row[8:]] for row in rows]
        used = [number for number in range(len(HEADINGS)) if any(row[number] for row in rows[1:])]
        if len(self.lines) > 1:
            used = [
                n
                for n in used
                if HEADINGS[n] not in ("stream", "what") or len({row[n] for row in rows[1:]}) > 1
            ]
        return [[row[number] for number in used] for row in rows]

    def _rows_across(self) -> list[list[str]]:
        methods = list(dict.fromkeys(line.method for line in self.lines))
        table: dict[tuple[str, str], dict[str, Line]] = {}
        for line in self.lines:
            table.setdefault((line.stream, line.what), {})[line.method] = line
        heads = [text for method in methods for text in (method, "print", "in SE")]
        rows = [["stream", "what", *heads]]
        for (stream, what), lines in table.items():
            texts = [lines[method].texts() if method in lines else [""] * 9 for method in methods]
            rows.append([stream, what, *(cell for text in texts for cell in (text[3], text[5], text[7]))])
        printed = any(line.printed is not None for line in self.lines)
        dropped = () if printed and self.comparable else ("in SE",) if printed else ("print", "in SE")
        kept = [n for n in range(len(rows[0])) if n < 2 or rows[0][n] not in dropped]
        return [[row[n] for n in kept] for row in rows]

    def notes(self) -> list[str]:
        """What the marks mean, and where the authors' numbers come from."""
        notes = []
        if self.comparable and any(line.texts()[7].endswith("†") for line in self.lines):
            notes.append("† one seed of ours: its spread is taken to be the printed one.")
        sources = dict.fromkeys(line.authors.source for line in self.lines if line.authors is not None)
        notes += [f"Authors' runs: {source}." for source in sources]
        return notes

    def to_markdown(self) -> str:
        """A Markdown table with its notes."""
        table = markdown_table(self.rows(), self.numbers_from)
        return "\n".join([table, *(f"\n{note}" for note in self.notes())])

    def to_latex(self) -> str:
        """A LaTeX tabular with booktabs rules."""
        return latex_table(self.rows())

    @property
    def numbers_from(self) -> int:
        """The first column of numbers."""
        return sum(name in ("stream", "method", "what") for name in self.rows()[0])

    def to_values(self) -> list[dict[str, Any]]:
        """As JSON values, with the value of every seed."""
        return [_values(line) for line in self.lines]

    def agreement(self) -> tuple[int, int]:
        """How many lines lie within two standard errors of the print, and how many could be compared."""
        told = [line.errors_apart for line in self.lines if not math.isnan(line.errors_apart)]
        return sum(abs(value) <= 2 for value in told), len(told)


CSV_COLUMNS = (
    *("stream", "method", "what", "seeds", "mean", "spread", "printed mean", "printed spread"),
    *("difference", "standard errors", "authors", "source"),
)


def csv_rows(comparisons: Sequence[Comparison]) -> str:
    """All lines as CSV at full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for line in (line for comparison in comparisons for line in comparison.lines):
        values = _values(line)
        seeds = " ".join(values["ours"]["values"])
        printed, authors = values["printed"] or {}, values["authors"] or {}
        writer.writerow(
            [
                line.stream,
                line.method,
                line.what,
                seeds,
                values["ours"]["mean"],
                values["ours"]["spread"],
                printed.get("mean"),
                printed.get("spread"),
                values["difference"],
                values["standard_errors"],
                authors.get("value"),
                authors.get("source"),
            ]
        )
    return out.getvalue()


def printed_text(cell: Printed | None, digits: int = 2) -> str:
    """A printed number as text; empty if there is none.

    >>> printed_text(Printed("table-2", "", "", mean=85.0, spread=0.86))
    '85.00 ± 0.86'
    """
    if cell is None or cell.mean is None:
        return "" if cell is None else cell.text
    mean = number_text(cell.mean, digits)
    return mean if cell.spread is None else f"{mean} ± {cell.spread:.{digits}f}"


def markdown_table(rows: Sequence[Sequence[str]], numbers_from: int = 3) -> str:
    """A Markdown table; columns from `numbers_from` are set to the right.

    >>> print(markdown_table([["a", "b"], ["x", "1"]], numbers_from=1))
    | a | b |
    | --- | ---: |
    | x | 1 |
    """
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    rules = [" --- |" if number < numbers_from else " ---: |" for number in range(len(rows[0]))]
    return "\n".join([lines[0], "|" + "".join(rules), *lines[1:]])


def latex_table(rows: Sequence[Sequence[str]]) -> str:
    """A LaTeX tabular with booktabs rules."""
    body = [" & ".join(_latex(cell) for cell in row) + r" \\" for row in rows]
    head = r"\begin{tabular}{" + "l" * len(rows[0]) + "}"
    return "\n".join([head, r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule", r"\end{tabular}"])


def _latex(text: str) -> str:
    for character in "&%$#_{}":
        text = text.replace(character, "\\" + character)
    return text.replace("±", r"$\pm$").replace("–", "--").replace("→", r"$\to$").replace("≥", r"$\geq$")


def _values(line: Line) -> dict[str, Any]:
    return {
        "stream": line.stream,
        "method": line.method,
        "what": line.what,
        "ours": {
            "mean": _or_none(line.ours.mean),
            "spread": _or_none(line.ours.spread),
            "values": {str(seed): value for seed, value in line.ours.values.items()},
        },
        "printed": None
        if line.printed is None
        else {"mean": line.printed.mean, "spread": line.printed.spread, "text": line.printed.text},
        "difference": _or_none(line.difference),
        "standard_errors": _or_none(line.errors_apart),
        "authors": None
        if line.authors is None
        else {"value": line.authors.value, "source": line.authors.source},
    }


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
