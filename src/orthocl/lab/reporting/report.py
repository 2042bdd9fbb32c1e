"""Report: one self-contained HTML page of an experiment. No script or style is fetched from anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined

from orthocl.errors import DataError
from orthocl.formatting import counted, size_text, time_text
from orthocl.lab.executors.interface import Outcome
from orthocl.lab.experiment.grid import flat
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.reporting.figure import (
    accuracy_figure,
    curves_figure,
    figure_svg,
    first_task_figure,
    groups,
    memorised_figure,
)
from orthocl.lab.reporting.table import make_table
from orthocl.lab.store.record import Record, package_version
from orthocl.storage import write_atomically

Pairs = Sequence[tuple[RunSettings, Record]]


@dataclass(frozen=True)
class MethodPanel:
    """One method on one stream, over seeds, as the page shows it."""

    stream: str
    method: str
    matrix: list[list[float]]
    tasks: list[str]
    settings: dict[str, str]
    monitors: list[dict[str, str]]
    runs: list[dict[str, str]]


def write_report(
    path: str | Path,
    pairs: Pairs,
    *,
    title: str,
    description: str = "",
    metrics: Sequence[str] = (),
    failures: Sequence[Outcome] = (),
) -> Path:
    """Write the report of some runs and return its path.

    Args:
        path: of the HTML file; its folder is created if needed.
        pairs: (run with its labels, record).
        title: heading.
        description: a sentence or two below it.
        metrics: columns of the table; the usual ones by default.
        failures: runs that failed, to be listed with their reasons.
    """
    path = Path(path)
    page = render_report(pairs, title=title, description=description, metrics=metrics, failures=failures)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode())
    return path


def render_report(
    pairs: Pairs,
    *,
    title: str,
    description: str = "",
    metrics: Sequence[str] = (),
    failures: Sequence[Outcome] = (),
) -> str:
    """The report as HTML text."""
    if not pairs:
        raise DataError("there is nothing to report: run the experiment first")
    template = (resources.files("orthocl.lab.reporting") / "report.html.j2").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = lambda value: "" if math.isnan(value) else f"{100 * value:.0f}"
    table = make_table(pairs, metrics)
    return environment.from_string(template).render(
        title=title,
        description=description,
        table=table,
        figures=_figures(pairs),
        groups=[_group(*group) for group in groups(pairs)],
        failures=failures,
        machines=_distinct([record.provenance.get("machine", {}) for _, record in pairs]),
        versions=_distinct([record.provenance.get("versions", {}) for _, record in pairs]),
        data=_distinct(
            [{"stream": r.stream["name"], "fingerprint": r.stream["fingerprint"]} for _, r in pairs]
        ),
        runs=counted(len(pairs), "run"),
        finished=max((str(record.provenance.get("finished", "")) for _, record in pairs), default=""),
        total=time_text(sum(_seconds(record) for _, record in pairs)),
        version=package_version("orthocl"),
    )


def _figures(pairs: Pairs) -> list[dict[str, str]]:
    """The figures for which there are data."""
    wanted = [
        ("Accuracy through the tasks", "Mean test accuracy over the tasks learnt so far.", accuracy_figure),
        (
            "What becomes of the first task",
            "Test accuracy on task 1 as later tasks are learnt.",
            first_task_figure,
        ),
        ("Memorised samples", "Training accuracy on the remembered samples of task 1.", memorised_figure),
        ("While training", "Test accuracy of every task at steps within the tasks.", curves_figure),
    ]
    found = []
    for heading, caption, make in wanted:
        try:
            found.append({"heading": heading, "caption": caption, "svg": figure_svg(make(pairs))})
        except DataError:
            continue
    return found


def _group(stream: str, method: str, records: Sequence[Record]) -> MethodPanel:
    first = records[0]
    matrix: list[list[float]] = np.mean([record.result.accuracies for record in records], axis=0).tolist()
    settings = {key: _text(value) for key, value in flat(first.settings.to_dict()).items() if key != "seed"}
    monitors = [
        {key: size_text(value) if key == "memory_bytes" else f"{value:.4g}" for key, value in row.items()}
        for row in first.result.monitors
    ]
    runs = [
        {
            "seed": str(record.settings.seed),
            "id": record.id,
            "aac": f"{100 * record.metric('aac'):.2f}",
            "time": time_text(_seconds(record)),
            "resumes": str(record.provenance.get("resumes", 0)),
            "hash": record.result_hash[:16],
        }
        for record in records
    ]
    return MethodPanel(stream, method, matrix, list(first.stream["tasks"]), settings, monitors, runs)


def _seconds(record: Record) -> float:
    value = record.metric("seconds")
    return 0.0 if math.isnan(value) else value


def _text(value: Any) -> str:
    return "default" if value is None else str(value)


def _distinct(values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for value in values:
        if dict(value) not in found:
            found.append(dict(value))
    return found
