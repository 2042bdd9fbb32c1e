"""`orthocl view`: the report page on this machine, with news while an experiment runs."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.markup import escape

from orthocl.cli.help_only import HELP_ONLY
from orthocl.cli.options import (
    DEFAULT_STORE,
    DataRootOption,
    MetricOption,
    OnlyOption,
    SeedOption,
    StoreOption,
    YesOption,
    agree_to_programs,
    working,
)
from orthocl.cli.output import json_text, manners, remark, remarks, suggest

if not HELP_ONLY:
    from orthocl.lab.experiment.experiment import Experiment, load_experiment
    from orthocl.lab.experiment.settings import RunSettings
    from orthocl.lab.reporting.chosen_runs import RecordCache, chosen
    from orthocl.lab.reporting.live_runs import live_runs
    from orthocl.lab.reporting.page_data import PageInput
    from orthocl.lab.reporting.view_server import ViewServer
    from orthocl.lab.run.execute import identify
    from orthocl.lab.store.store import Store

app = App(name="view")


@app.default
def view(
    file: Annotated[
        Path | None, Parameter(help="Experiment file; without one, all runs of the store.")
    ] = None,
    *,
    port: Annotated[int, Parameter(help="Port on this machine; any free one by default.")] = 0,
    open_: Annotated[bool, Parameter(name="--open", negative="", help="Open it in the browser.")] = False,
    only: OnlyOption = None,
    seed: SeedOption = None,
    metric: MetricOption = None,
    store: StoreOption = DEFAULT_STORE,
    data_root: DataRootOption = None,
    yes: YesOption = False,
) -> int:
    """Show the report page on this machine, and keep it up to date while runs go on. Ctrl-C ends it.

    Only this machine can see it, and it changes nothing. With FILE it asks before it runs parts of your own that FILE
    names; without FILE it runs nothing.

    Example: orthocl view experiments/quick.toml --open
    """
    opened, experiment, ids = Store(store), None, None
    if file is not None:
        agree_to_programs(file, "a view of its runs", yes)
        experiment = load_experiment(file, only=only or (), seeds=seed or ())
        with working("looking for the runs in the store"):
            ids = identify(experiment.runs, None if data_root is None else str(data_root))
    cache = RecordCache(opened)

    def look() -> PageInput:
        return look_at(cache, experiment, ids, only or (), seed or (), metric or ())

    server = ViewServer(look, port)
    if manners().json:
        print(json_text({"address": server.address}), flush=True)
    remarks().print(
        f"the page of {escape(str(opened.directory))} is at {server.address} (Ctrl-C ends it)",
        highlight=False,
        soft_wrap=True,
    )
    if open_:
        webbrowser.open(server.address)
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        remark("view ended")
        suggest(f"orthocl report {file or ''}".rstrip() + " keeps the page as a file")
    finally:
        server.server_close()
    return 0


def look_at(
    cache: RecordCache,
    experiment: Experiment | None,
    ids: list[str] | None,
    only: list[str] | tuple[()] = (),
    seeds: list[int] | tuple[()] = (),
    metrics: list[str] | tuple[()] = (),
) -> PageInput:
    """What the page shows now: the finished runs, and how far the others have got."""
    store = cache.store
    runs: list[tuple[str, RunSettings | None]]
    if experiment is None or ids is None:
        runs, title, description = [(run, None) for run in store.ids()], "All runs", ""
    else:
        runs = list(zip(ids, experiment.runs, strict=True))
        title, description = experiment.name, experiment.description
        metrics = metrics or list(experiment.metrics)
    found = [(settings, cache.record(run)) for run, settings in runs]
    pairs = [(settings or record.settings, record) for settings, record in found if record is not None]
    if experiment is None:
        pairs = chosen(pairs, only, seeds)
    live = live_runs(store, runs)
    return PageInput(pairs, title, description, metrics, (), store.directory, "", live)
