"""run_experiment: all runs of an experiment, wherever, with progress; and what it would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console

from orthocl.errors import OrthoclError, UnsupportedError
from orthocl.lab.executors import Event, OnEvent, Outcome, make_executor
from orthocl.lab.experiment.experiment import Experiment, load_experiment
from orthocl.lab.experiment.settings import RunSettings, StreamSettings, run_id
from orthocl.lab.reporting.progress import make_view
from orthocl.lab.run.execute import RunOptions, build_learner, make_stream, total_steps
from orthocl.lab.store.record import Record
from orthocl.lab.store.store import State, Store
from orthocl.streams import Stream
from orthocl.training import train

PROBE_STEPS = 25


@dataclass(frozen=True)
class Results:
    """What became of an experiment: `orthocl.lab.reporting.table.table(results.pairs)` makes a table of it."""

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
        labels = [run.label for run in experiment.runs]
        with make_view(labels, console or Console(stderr=True)) as view:
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


@dataclass(frozen=True)
class Pace:
    """Seconds per step, per sample that is tested, and per task besides; and what they rest on."""

    basis: str
    step: float
    sample: float = 0.0
    task: float = 0.0

    def seconds(self, settings: RunSettings, stream: Stream) -> float:
        """Of a whole run."""
        steps = total_steps(settings, [len(task.train) for task in stream], own_batch_size(settings))
        every = settings.train.evaluate_every
        tests = 1 + len(stream) + sum(count // every for count in steps if every)
        tested = tests * sum(len(task.test) for task in stream)
        return self.step * sum(steps) + self.sample * tested + self.task * len(stream)


def forecast(runs: Sequence[RunSettings], store: Store, options: RunOptions | None = None) -> list[Forecast]:
    """What each run would take, from records of the same method and network, else from a few steps of each."""
    options = options or RunOptions()
    records = list(store.records())
    streams: dict[StreamSettings, Stream | OrthoclError] = {}
    paces: dict[str, Pace] = {}
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
        state = store.state(run_id(settings, stream.fingerprint))
        if state in ("finished", "unsupported"):
            forecasts.append(Forecast(settings, state, 0.0))
            continue
        key = _likeness(settings)
        try:
            if key not in paces:
                paces[key] = _pace(settings, stream, records, options.data_root)
            seconds = paces[key].seconds(settings, stream)
            forecasts.append(Forecast(settings, state, seconds, paces[key].basis))
        except UnsupportedError as error:
            forecasts.append(Forecast(settings, state, 0.0, note=f"unsupported: {error}"))
    return forecasts


def _likeness(settings: RunSettings) -> str:
    """Runs of equal likeness take about the same time per step."""
    resolved = settings.resolved()
    return repr((resolved.method, resolved.net, resolved.train.batch_size, resolved.train.optimizer))


def _pace(settings: RunSettings, stream: Stream, records: Sequence[Record], data_root: str | None) -> Pace:
    """From the whole time of a similar record, or of a few steps."""
    for record in records:
        if record.status == "finished" and _likeness(record.settings) == _likeness(settings):
            own = own_batch_size(record.settings)
            steps = sum(total_steps(record.settings, record.result.samples, own))
            return Pace("record", record.metric("seconds") / max(1, steps))
    return _probe(settings.resolved(), stream, data_root)


def _probe(settings: RunSettings, stream: Stream, data_root: str | None) -> Pace:
    """The pace on two tiny tasks, since on the second the method has something to remember."""
    size = own_batch_size(settings) or settings.train.batch_size
    count = min(PROBE_STEPS * size, len(stream.task(1).train))
    tiny = replace(
        settings,
        stream=replace(settings.stream, tasks=min(2, len(stream)), train_size=count, test_size=None),
        train=replace(settings.train, epochs=1, evaluate_every=None),
    )
    small = make_stream(tiny.stream, data_root)
    with torch.random.fork_rng(devices=[]):
        learner = build_learner(tiny, small)
        start = perf_counter()
        spent = train(learner, small, tiny.train, seed=tiny.seed).seconds
        whole = perf_counter() - start
    tested = (1 + len(small)) * sum(len(task.test) for task in small)
    return Pace(
        "probe",
        step=spent["train"] / max(1, sum(total_steps(tiny, [count] * len(small), size))),
        sample=spent["evaluate"] / max(1, tested),
        task=(whole - spent["train"] - spent["evaluate"]) / len(small),
    )


def own_batch_size(settings: RunSettings) -> int | None:
    """The batch size that a method brings along, if it does."""
    size = settings.resolved().method.settings.get("batch_size")
    return size if isinstance(size, int) else None


def ignore(event: Event) -> None:
    """An `on_event` for silence."""
