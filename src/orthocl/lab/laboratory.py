"""run_experiment: all runs of an experiment, on any backend, with progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from orthocl.lab.executors import Event, OnEvent, Outcome, make_executor
from orthocl.lab.experiment.experiment import Experiment, load_experiment
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.reporting.progress import make_display
from orthocl.lab.run.execute import RunOptions
from orthocl.lab.store.record import Record
from orthocl.lab.store.store import Store
from orthocl.sources import check_not_loading


@dataclass(frozen=True)
class Results:
    """What became of an experiment: `orthocl.lab.make_table(results.pairs)` makes a table of it."""

    experiment: Experiment
    outcomes: tuple[Outcome, ...]

    @property
    def pairs(self) -> list[tuple[RunSettings, Record]]:
        """(run with its labels, record) of all runs that have a record."""
        return [(outcome.settings, outcome.record) for outcome in self.outcomes if outcome.record is not None]

    @property
    def failures(self) -> list[Outcome]:
        """The runs that failed, with reasons."""
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]


def run_experiment(
    experiment: Experiment | str | Path,
    store: Store | str | Path,
    *,
    jobs: int = 1,
    backend: str = "local",
    backend_settings: Mapping[str, Any] | None = None,
    options: RunOptions | None = None,
    on_event: OnEvent | None = None,
    console: Console | None = None,
) -> Results:
    """Execute all runs of an experiment that have no record yet.

    Args:
        experiment: an experiment, or the path of its file.
        store: where records go, and where those of finished runs are found.
        jobs: runs at a time on this machine.
        backend: "local", "ray" or "slurm".
        backend_settings: further settings of the backend.
        options: how to execute each run.
        on_event: called with every event, instead of showing progress.
        console: where the progress display goes; standard error by default.
    """
    check_not_loading()
    if not isinstance(experiment, Experiment):
        experiment = load_experiment(experiment)
    store = store if isinstance(store, Store) else Store(store)
    settings = {**({"jobs": jobs} if backend == "local" else {}), **(backend_settings or {})}
    executor = make_executor(backend, settings)
    options = options or RunOptions()
    if on_event is not None:
        outcomes = executor.run_all(experiment.runs, store, options=options, on_event=on_event)
    else:
        labels = [run.label for run in experiment.runs]
        with make_display(labels, console or Console(stderr=True)) as display:
            outcomes = executor.run_all(experiment.runs, store, options=options, on_event=display.on_event)
    return Results(experiment, tuple(outcomes))


def ignore(event: Event) -> None:
    """An `on_event` that shows nothing."""
