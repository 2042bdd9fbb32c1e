"""`orthocl demo`: see the whole thing work in a minute or two."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import SeedOption, SetOption, check_jobs, working
from orthocl.cli.output import Terminal, remarks, report, say, silent, suggest

if not HELP_ONLY:
    from orthocl.cli.run import show_results
    from orthocl.lab.experiment.experiment import load_experiment
    from orthocl.lab.laboratory import run_experiment
    from orthocl.lab.reporting.report import write_report
    from orthocl.lab.run.execute import RunOptions
    from orthocl.lab.store.store import Store

app = App(name="demo")


@app.default
def demo(
    *,
    out: Annotated[Path, Parameter(help="Folder for the records and the report.")] = Path("orthocl-demo"),
    jobs: Annotated[int | None, Parameter(help="Runs at a time; all cores by default.")] = None,
    seed: SeedOption = None,
    set_: SetOption = None,
    fresh: Annotated[
        bool, Parameter(negative="", help="Delete earlier results in that folder first.")
    ] = False,
) -> int:
    """See it work: five methods on two small streams of embedded data, a table and a report, in a minute or two.

    Nothing is downloaded. An interrupted demonstration resumes where it left off.
    """
    at_once = max(1, check_jobs(jobs))
    if fresh:
        shutil.rmtree(out / "store", ignore_errors=True)
    with resources.as_file(resources.files("orthocl.lab") / "demo.toml") as file:
        experiment = load_experiment(file, seeds=seed or (), overrides=set_ or ())
    say(f"{experiment.name}. {experiment.description}")
    results = run_experiment(
        experiment,
        Store(out / "store"),
        jobs=at_once,
        options=RunOptions(keep_weights=False),
        console=remarks() if silent() else Terminal(),
    )
    show_results(results, ())
    with working("drawing the report"):
        page = write_report(
            out / "report.html",
            results.pairs,
            title=experiment.name,
            description=experiment.description,
            failures=results.failures,
            store=Store(out / "store"),
            command="orthocl demo",
        )
    say(f"report: {page.absolute()}")
    report(report=str(page.absolute()))
    suggest(f"open {page}; then orthocl run --stream rotated-mnist-mini --method sgd --method ogd+ --seed 1")
    return 1 if results.failures else 0
