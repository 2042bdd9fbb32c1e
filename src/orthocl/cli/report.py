"""`orthocl report`: the HTML page, and figures, of what is in the store."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import (
    DEFAULT_STORE,
    DataRootOption,
    MetricOption,
    OnlyOption,
    SeedOption,
    SetOption,
    StoreOption,
    YesOption,
    agree_to_programs,
    make_folder,
    warn,
    working,
)
from orthocl.cli.output import remark, suggest
from orthocl.cli.output import report as facts
from orthocl.cli.records import readable_records
from orthocl.errors import SettingsError, StoreError
from orthocl.formatting import counted

if not HELP_ONLY:
    from orthocl.lab.experiment.experiment import load_experiment
    from orthocl.lab.experiment.settings import RunSettings
    from orthocl.lab.reporting.chosen_runs import chosen, failed_runs
    from orthocl.lab.reporting.figure import check_suffix, make_figure, save_figure
    from orthocl.lab.reporting.report import write_report
    from orthocl.lab.run.execute import identify
    from orthocl.lab.store.record import Record
    from orthocl.lab.store.store import Store

app = App(name="report")


@app.default
def report(
    file: Annotated[
        Path | None, Parameter(help="Experiment file; without one, all runs of the store.")
    ] = None,
    *,
    out: Annotated[
        Path | None, Parameter(help="Output file: report.html by default, FIGURE.svg for a figure.")
    ] = None,
    figure: Annotated[
        str | None,
        Parameter(
            help="Draw this figure instead: accuracy, first-task, memorised, curves, trade-off or "
            "trade-off-directions (.svg, .pdf, .png)."
        ),
    ] = None,
    only: OnlyOption = None,
    seed: SeedOption = None,
    set_: SetOption = None,
    metric: MetricOption = None,
    store: StoreOption = DEFAULT_STORE,
    data_root: DataRootOption = None,
    yes: YesOption = False,
) -> None:
    """Write a self-contained HTML page of finished runs.

    With FILE it asks before it runs parts of your own that FILE names; without FILE it runs nothing.

    Example: orthocl report experiments/quick.toml --out quick.html

    A figure: orthocl report experiments/quick.toml --figure accuracy --out accuracy.pdf
    """
    out = out or Path("report.html" if figure is None else f"{figure}.svg")
    if figure is not None:
        check_suffix(out)
    make_folder(out)
    opened = Store(store)
    name, description, metrics = "All runs", "", list(metric or ())
    if file is None:
        if set_:
            raise SettingsError("--set changes the settings of an experiment file: give the file too")
        with working("reading the store"):
            records = readable_records(opened)
            pairs = chosen(((record.settings, record) for record in records), only or (), seed or ())
            failures = failed_runs(opened, only or (), seed or ())
    else:
        agree_to_programs(file, "a report of its runs", yes)
        experiment = load_experiment(file, only=only or (), seeds=seed or (), overrides=set_ or ())
        name, description = experiment.name, experiment.description
        metrics = metrics or list(experiment.metrics)
        with working("looking for the runs in the store"):
            ids = identify(experiment.runs, None if data_root is None else str(data_root))
            pairs = _pairs(experiment.runs, ids, opened)
            failures = failed_runs(opened, runs=ids)
    if not pairs:
        raise StoreError(f"none of these runs has finished in {opened.directory}: run the experiment first")
    with working("drawing"):
        if figure is not None:
            path = save_figure(make_figure(figure, pairs), out)
        else:
            command = (
                ""
                if file is None
                else f"orthocl run {shlex.quote(file.name)} --report {shlex.quote(out.name)}"
            )
            path = write_report(
                out,
                pairs,
                title=name,
                description=description,
                metrics=metrics,
                failures=failures,
                store=opened,
                command=command,
            )
    failed = f", {len(failures)} failed," if failures else ""
    remark(f"{counted(len(pairs), 'run')} finished{failed} to {path}")
    facts(runs=len(pairs), failed=len(failures), **{"report" if figure is None else "figure": str(path)})
    suggest(
        f"open {path}"
        + (f"; orthocl view {file or ''}".rstrip() + " shows it live" if figure is None else "")
    )


def _pairs(runs: Sequence[RunSettings], ids: Sequence[str], store: Store) -> list[tuple[RunSettings, Record]]:
    """The runs that have a good record, with a word about damaged ones."""
    found = []
    for run, settings in zip(ids, runs, strict=True):
        try:
            record = store.record(run)
        except StoreError as error:
            warn(f"left out: {error}")
            continue
        if record is not None:
            found.append((settings, record))
    return found
