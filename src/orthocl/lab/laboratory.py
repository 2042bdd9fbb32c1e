"""run_experiment: all runs of an experiment, wherever, with progress; and what it would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from orthocl.errors import OrthoclError, UnsupportedError
from orthocl.lab.executors import Event, OnEvent, Outcome, make_executor
from orthocl.lab.experiment import Experiment, load_experiment
from orthocl.lab.record import Record
from orthocl.lab.run import RunOptions, build_learner, make_stream, total_steps
from orthocl.lab.settings import RunSettings, StreamSettings, run_id
from orthocl.lab.store import State, Store
from orthocl.lab.view import make_view
from orthocl.streams import Stream
from orthocl.training import train

PROBE_STEPS = 25


@dataclass(frozen=True)
class Results:
    """What became of an experiment: `orthocl.lab.table.table(results.pairs)` makes a table of it."""

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
    """Make all runs of an experiment that have no record yet.

    Args:
        experiment: an experiment, or the path of its file.
        store: where records go, and where those of finished runs are found.
        jobs: runs at a time on this machine.
        backend: "local", "ray" or "slurm".
        backend_settings: further settings of the backend.
        options: how to execute each run.
        on_event: told of everything that happens, instead of a progress view.
        console: where the progress view goes; standard error by default.
    """
    if not isinstance(experiment, Experiment):
        experiment = load_experiment(experiment)
    store = store if isinstance(store, Store) else Store(store)
    settings = {**({"jobs": jobs} if backend == "local" else {}), **(backend_settings or {})}
    executor = make_executor(backend, settings)
    options = options or RunOptions()
    if on_event is not None:
        outcomes = executor.run_all(experiment.runs, store, options=options, on_event=on_event)
    else:
        with make_view(len(experiment.runs), console or Console(stderr=True)) as view:
            outcomes = executor.run_all(experiment.runs, store, options=options, on_event=view.on_event)
    return Results(experiment, tuple(outcomes))


@dataclass(frozen=True)
class Forecast:
    """What a run would take.

    Args:
        settings: the run.
        state: how far it is; None if its data are not there.
        seconds: estimated time on one core, 0 if it is finished; None if it cannot be told.
        basis: what the estimate rests on: "record" of the same method, or "probe" of a few steps.
        note: why it cannot be told.
    """

    settings: RunSettings
    state: State | None
    seconds: float | None
    basis: str = ""
    note: str = ""


def forecast(runs: Sequence[RunSettings], store: Store, options: RunOptions | None = None) -> list[Forecast]:
    """What each run would take, from records of the same method and network, else from a few steps of each."""
    options = options or RunOptions()
    records = list(store.records())
    streams: dict[StreamSettings, Stream | OrthoclError] = {}
    rates: dict[str, tuple[float, str]] = {}
    forecasts = []
    for settings in runs:
        wanted = settings.resolved().stream
        if wanted not in streams:
            try:
                streams[wanted] = make_stream(wanted, options.data_root)
            except OrthoclError as error:
                streams[wanted] = error
        stream = streams[wanted]
        if isinstance(stream, OrthoclError):
            forecasts.append(Forecast(settings, None, None, note=str(stream)))
            continue
        forecasts.append(
            _forecast(settings, stream, store.state(run_id(settings, stream.fingerprint)), records, rates)
        )
    return forecasts


def _forecast(
    settings: RunSettings,
    stream: Stream,
    state: State,
    records: Sequence[Record],
    rates: dict[str, tuple[float, str]],
) -> Forecast:
    if state in ("finished", "unsupported"):
        return Forecast(settings, state, 0.0)
    key = _likeness(settings)
    try:
        if key not in rates:
            rates[key] = _rate(settings, stream, records)
    except UnsupportedError as error:
        return Forecast(settings, state, 0.0, note=f"unsupported: {error}")
    rate, basis = rates[key]
    return Forecast(settings, state, rate * _steps(settings, stream), basis)


def _likeness(settings: RunSettings) -> str:
    """Runs of equal likeness take about the same time per step."""
    resolved = settings.resolved()
    return repr((resolved.method, resolved.net, resolved.train.batch_size, resolved.train.optimizer))


def _rate(settings: RunSettings, stream: Stream, records: Sequence[Record]) -> tuple[float, str]:
    """Seconds per step."""
    for record in records:
        if record.status == "finished" and _likeness(record.settings) == _likeness(settings):
            own = own_batch_size(record.settings)
            steps = sum(total_steps(record.settings, record.result.samples, own))
            return record.metric("seconds") / max(1, steps), "record"
    return _probe(settings.resolved(), stream), "probe"


def _probe(settings: RunSettings, stream: Stream) -> float:
    """Time per step on the second of two tiny tasks, when the method has something to remember."""
    size = own_batch_size(settings) or settings.train.batch_size
    count = min(PROBE_STEPS * size, len(stream.task(1).train))
    tiny = replace(
        settings,
        stream=replace(settings.stream, tasks=min(2, len(stream)), train_size=count, test_size=None),
        train=replace(settings.train, epochs=1, evaluate_every=None),
    )
    small = make_stream(tiny.stream)
    with torch.random.fork_rng(devices=[]):
        learner = build_learner(tiny, small)
        progress = train(learner, small, tiny.train, seed=tiny.seed)
    return progress.seconds["train"] / max(1, sum(total_steps(tiny, [count] * len(small), size)))


def _steps(settings: RunSettings, stream: Stream) -> int:
    return sum(total_steps(settings, [len(task.train) for task in stream], own_batch_size(settings)))


def own_batch_size(settings: RunSettings) -> int | None:
    """The batch size that a method brings along, if it does."""
    size = settings.resolved().method.settings.get("batch_size")
    return size if isinstance(size, int) else None


def ignore(event: Event) -> None:
    """An `on_event` for silence."""
