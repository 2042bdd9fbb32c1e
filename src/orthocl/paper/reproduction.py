"""REPRODUCTION.md: every table and figure compared with the paper, from kept records and nothing else.

The same records give the same bytes: date, machine and order of files have no influence.
"""

from __future__ import annotations

import os
from pathlib import Path

from orthocl.errors import SettingsError
from orthocl.formatting import counted, time_text
from orthocl.lab import Store
from orthocl.lab.reporting.figure import save_figure
from orthocl.paper.comparison import markdown_table
from orthocl.paper.costs import HEADINGS, PRICE, cost_table, whole_time
from orthocl.paper.discussion import discuss
from orthocl.paper.evidence import Evidence, Pair, RecordIndex, aac, settings_key
from orthocl.paper.experiments import experiment_folder, load_runs
from orthocl.paper.items import ITEMS, Item, find_evidence, item_runs, make_page
from orthocl.paper.missing import MissingRuns, group_missing, missing_table
from orthocl.paper.page import Page, count_verdicts, verdict_cell, verdict_table
from orthocl.paper.predictions import FILE, fitting, read_predictions
from orthocl.paper.published import find_printed
from orthocl.paper.samples import number_text
from orthocl.storage import write_output

MARKS = ("<!-- results of orthocl paper reproduction -->", "<!-- end of results -->")
"""Around the table of results in the README."""
PRICE_HEAD = HEADINGS[PRICE]
PRICED = "What a step costs is processor time that the runs measured, median over seeds."
UNPRICED = (
    "What a step costs in that of plain SGD is not said: these runs did not measure what their processors worked. "
    "`benchmarks/projection.py` does."
)
TITLE = "# The paper's experiments, run again"


class Reproduction:
    """All pages from the records of a store.

    Args:
        store: kept records.
        figures: folder of the figures, as the text links to it.
    """

    def __init__(self, store: Store, figures: str = "docs/figures/reproduction"):
        self.index = RecordIndex(store)
        self.figures = figures
        predictions = read_predictions(store.directory / FILE)
        self.evidence: dict[str, Evidence] = {}
        self.pages: dict[str, Page] = {}
        for item in ITEMS.values():
            runs = item_runs(item).runs if item.experiments else ()
            self.evidence[item.name] = find_evidence(item, self.index, runs)
            self.pages[item.name] = make_page(
                item, self.evidence[item.name], True, fitting(predictions, runs)
            )

    def text(self) -> str:
        """The whole file."""
        parts = [
            TITLE,
            self._introduction(),
            "## Verdicts",
            self._verdicts(),
            "## Results at a glance",
            self.glance(),
        ]
        for name, page in self.pages.items():
            figure = f"{self.figures}/{name}.svg" if page.draw is not None else ""
            parts.append(self._page(ITEMS[name], page, figure))
        parts += ["## Cost", self._cost(), "## Where we differ", *self._discussion()]
        parts += ["## What was not run", self._missing()]
        return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"

    def draw(self, folder: Path) -> list[Path]:
        """Draw all figures there are records for."""
        drawn = []
        for name, page in self.pages.items():
            if page.draw is not None:
                drawn.append(save_figure(page.draw(), folder / f"{name}.svg"))
        return drawn

    def glance(self) -> str:
        """Table 2 in one table: ours over seeds, the print in brackets."""
        evidence = self.evidence["table-2"]
        rows = [["average accuracy, %", *evidence.streams]]
        for method in evidence.methods():
            rows.append([method, *(_glance_cell(evidence, stream, method) for stream in evidence.streams)])
        note = "Ours ± standard deviation (seeds) [print]."
        return f"{markdown_table(rows, numbers_from=1)}\n\n{note}"

    # ---- parts ------------------------------------------------------------------------------------------------

    def _introduction(self) -> str:
        records = [record for record in self.index.records() if record.status == "finished"]
        if not records:
            state = "There are no records yet: every table below shows the print alone."
        else:
            lost = len(self.index.diverged)
            failed = f", and {lost} that diverged" if lost else ""
            state = (
                f"It rests on {counted(len(records), 'finished run')} "
                f"({time_text(whole_time(records))} of computing in all){failed}."
            )
        return (
            "Bennani, Doan, Sugiyama: *Generalisation Guarantees for Continual Learning with Orthogonal Gradient "
            "Descent*. This file is made from the records in `results/` by `orthocl paper reproduction`; do not edit "
            f"it. {state} To show one item alone: `orthocl paper table-2`."
        )

    def _verdicts(self) -> str:
        verdicts = [verdict for page in self.pages.values() for verdict in page.verdicts]
        rows = [("item", "claim", "verdict")]
        rows += [
            (name, verdict.claim, verdict_cell(verdict))
            for name, page in self.pages.items()
            for verdict in page.verdicts
        ]
        return f"{count_verdicts(verdicts)}. The numbers are with the items.\n\n" + markdown_table(rows, 3)

    def _page(self, item: Item, page: Page, figure: str) -> str:
        evidence = self.evidence[item.name]
        if not (item.shown_without or evidence.pairs or evidence.diverged):
            claims = verdict_table(page.verdicts) if page.verdicts else ""
            return f"## {page.title}\n\n{page.caption}\n\nNot run yet.\n\n{claims}"
        return page.to_markdown(2, figure)

    def _cost(self) -> str:
        pairs = self._all_pairs()
        if not pairs:
            return "No run has been made yet."
        table = cost_table(pairs)
        return (
            "The time of a run is by the clock on the wall of the machine that made its record, with other work beside "
            f"it, so it says little about the method. {PRICED if PRICE_HEAD in table.rows[0] else UNPRICED} Memory is "
            "what the method keeps and caches beside the network.\n\n"
            + markdown_table(table.rows, numbers_from=2)
        )

    def _all_pairs(self) -> list[Pair]:
        """Every record of the tables and figures once, under the first labels it appears with."""
        found: dict[str, Pair] = {}
        for name, evidence in self.evidence.items():
            for run, record in evidence.pairs if ITEMS[name].runs_needed else ():
                found.setdefault(record.id, (run, record))
        return list(found.values())

    def _discussion(self) -> list[str]:
        pages = [page for name, page in self.pages.items() if self.evidence[name].pairs]
        evidence = self.evidence
        return discuss(pages, evidence["table-2"], evidence["figure-2"], evidence["authors-grid"])

    def _missing(self) -> str:
        seen: set[tuple[str, int]] = set()
        groups: list[MissingRuns] = []
        for item in ITEMS.values():
            for file in item.experiments if item.runs_needed else ():
                runs = load_runs(experiment_folder() / f"{file}.toml")
                found = self.index.find(runs)
                seen |= {settings_key(run) for run, _ in found.diverged}
                missing = [run for run in found.missing if settings_key(run) not in seen]
                seen |= {settings_key(run) for run in missing}
                groups += group_missing(file, missing)
        if not groups:
            return "Everything was run."
        count = sum(len(group.methods) * len(group.seeds) for group in groups)
        searches = (
            "The rest of the appendix's searches (`experiments/search_mnist.toml`, `search_cifar100.toml`, "
            "`search_cub200.toml`) and of the authors' grid (`experiments/authors_grid.toml`) is not counted here: "
            "`orthocl search experiments/search_mnist.toml --only stable-sgd`, "
            '`orthocl run experiments/authors_grid.toml --only "ewc-32*"`.'
        )
        table = markdown_table(missing_table(groups).rows, numbers_from=4)
        return f"{counted(count, 'run')} of the tables and figures.\n\n{table}\n\n{searches}"


def write_reproduction(store: Store, out: Path, figures: Path | None = None) -> list[Path]:
    """Write the file, and the figures into a folder if one is given; returns all paths.

    Links to figures are relative to the file.
    """
    folder = figures or out.parent / "docs" / "figures" / "reproduction"
    made = Reproduction(store, _relative(folder, out.parent))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_output(out, made.text().encode())
    return [out, *(made.draw(folder) if figures is not None else [])]


def update_readme(path: Path, table: str) -> bool:
    """Put the table of results between its marks in a Markdown file; whether that changed it.

    Raises:
        SettingsError: when the marks are missing.
    """
    text = path.read_text(encoding="utf-8")
    before, start, rest = text.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not start or not end:
        raise SettingsError(
            f"{path} has no place for the results: put {MARKS[0]} and {MARKS[1]} on lines of their own"
        )
    new = f"{before}{start}\n{table}\n{end}{after}"
    if new != text:
        write_output(path, new.encode())
    return new != text


def _relative(folder: Path, start: Path) -> str:
    return Path(os.path.relpath(folder.resolve(), start.resolve())).as_posix()


def _glance_cell(evidence: Evidence, stream: str, method: str) -> str:
    sample = evidence.sample(stream, method, aac)
    printed = find_printed("table-2", stream, method, "aac")
    broken = len(evidence.diverged_seeds(stream, method))
    ours = f"{sample.text()} ({len(sample)})" if len(sample) else f"diverged ({broken})" if broken else "–"
    return ours if printed is None or printed.mean is None else f"{ours} [{number_text(printed.mean)}]"
