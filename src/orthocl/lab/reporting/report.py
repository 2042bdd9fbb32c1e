"""Report: one self-contained HTML page of an experiment, drawn in the browser from data that it carries.

Nothing is fetched from anywhere, and the page's own security policy forbids it. The charts are hand-written SVG in
small files (`page/*.js`, 90 kB as they are). Inlined and minified, Vega-Lite with Vega would be 830 kB and Observable
Plot with D3 490 kB; uPlot is 50 kB, but draws on a canvas, so that neither print nor SVG files nor screen readers
get anything from it. None of them draws accuracy matrices, and this page must be readable in ten years.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from orthocl.errors import DataError
from orthocl.formatting import counted, time_text
from orthocl.lab.executors.interface import Outcome
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.reporting.page_data import PageInput, page_data, to_script
from orthocl.lab.reporting.static_figure import static_figures
from orthocl.lab.reporting.table_text import BEST, TIED
from orthocl.lab.store.record import Record, package_version
from orthocl.lab.store.store import Store
from orthocl.storage import write_output

Pairs = Sequence[tuple[RunSettings, Record]]
SCRIPTS = (
    *("core.js", "cards.js", "charts.js", "results.js", "curves.js", "matrices.js", "cost.js", "evidence.js"),
    *("settings.js", "main.js"),
)
SECTIONS = (
    ("live", "Running"),
    ("results", "Results"),
    ("curves", "Curves"),
    ("matrices", "Matrices"),
    ("cost", "Cost"),
    ("monitors", "Monitors"),
    ("theory", "Theory"),
    ("certificates", "Certificates"),
    ("settings", "Settings"),
    ("reproduce", "Reproduce"),
)
TEXTS = {
    "curves": "",
    "matrices": "Test accuracy in percent on each task (columns) at the start and after learning each task (rows), "
    "mean over seeds. The task just learnt is framed: below a frame is memory, to its right what is not learnt yet.",
    "cost": "",
    "monitors": "What the methods measured about themselves after each task, mean over seeds.",
    "theory": "What theory said beforehand, beside what happened.",
    "certificates": "Statements about single runs, with the conditions under which they hold.",
    "settings": "",
    "reproduce": "",
}
STATIC_ROWS = 200
"""Rows of the table for readers without scripts."""
STATIC_GROUPS = 40
"""Lines of the figure for readers without scripts; with more there is none."""


def write_report(
    path: str | Path,
    pairs: Pairs,
    *,
    title: str,
    description: str = "",
    metrics: Sequence[str] = (),
    failures: Sequence[Outcome] = (),
    store: Store | None = None,
    command: str = "",
) -> Path:
    """Write the report of some runs and return its path.

    Args:
        path: of the HTML file; its folder is created if needed.
        pairs: (run with its labels, record).
        title: heading.
        description: a sentence or two below it.
        metrics: columns of the table; the usual ones by default.
        failures: runs that failed, to be listed with their reasons.
        store: where the records are: forecasts and certificates beside them are shown too.
        command: that makes the runs again.
    """
    path = Path(path)
    page = render_report(
        pairs,
        title=title,
        description=description,
        metrics=metrics,
        failures=failures,
        store=store,
        command=command,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_output(path, page.encode())
    return path


def render_report(
    pairs: Pairs,
    *,
    title: str,
    description: str = "",
    metrics: Sequence[str] = (),
    failures: Sequence[Outcome] = (),
    store: Store | None = None,
    command: str = "",
) -> str:
    """The report as HTML text."""
    if not pairs:
        raise DataError("there is nothing to report: run the experiment first")
    folder = None if store is None else store.directory
    return render_page(PageInput(pairs, title, description, metrics, failures, folder, command))


def render_page(given: PageInput, live: str = "") -> str:
    """A page as HTML text.

    Args:
        given: what it shows.
        live: the address of news, for a page that is served while runs go on.
    """
    data = page_data(given)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    seconds = float(data.values["seconds"])
    return environment.from_string(_part("page.html.j2")).render(
        title=data.values["title"],
        description=data.values["description"],
        findings=data.findings,
        table=data.table,
        rows=data.table.rows[:STATIC_ROWS],
        more=max(0, len(data.table.rows) - STATIC_ROWS),
        figure="" if live or len(data.groups) > STATIC_GROUPS else static_figures(data.groups),
        failures=data.values["failures"],
        best=BEST,
        tied=TIED,
        explained=[metric for metric in data.values["metrics"] if metric["meaning"]],
        sections=SECTIONS,
        texts=TEXTS,
        runs=_runs(given),
        total=time_text(0.0 if math.isnan(seconds) else seconds),
        finished=data.values["finished"],
        version=package_version("orthocl"),
        style=_part("page.css"),
        script="\n".join(_part(name) for name in SCRIPTS),
        data=to_script(data.values),
        live=live,
    )


def _runs(given: PageInput) -> str:
    """How many runs the page is about.

    >>> _runs(PageInput((), "t"))
    '0 runs finished'
    """
    failed = f", {len(given.failures):,} failed" if given.failures else ""
    return f"{counted(len(given.pairs), 'run')} finished{failed}"


def _part(name: str) -> str:
    return (resources.files("orthocl.lab.reporting") / "page" / name).read_text(encoding="utf-8")
