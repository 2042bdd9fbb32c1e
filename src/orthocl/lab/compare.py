"""compare: methods on your own stream, from Python, through the laboratory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from torch import nn

from orthocl.checking import make_checked
from orthocl.errors import DataError, SettingsError, warn
from orthocl.lab.executors import OnEvent
from orthocl.lab.experiment.experiment import Experiment
from orthocl.lab.experiment.settings import MethodSettings, NetSettings, RunSettings, StreamSettings
from orthocl.lab.experiment.specs import label_of
from orthocl.lab.laboratory import Results, run_experiment
from orthocl.lab.reporting.figure import make_figure, save_figure
from orthocl.lab.reporting.identical import identical_seeds
from orthocl.lab.reporting.report import write_report
from orthocl.lab.reporting.table import Format, make_table
from orthocl.lab.run.execute import RunOptions
from orthocl.lab.store.record import Record
from orthocl.lab.store.store import Store
from orthocl.methods import METHODS, Method
from orthocl.nets import NETS
from orthocl.streams import STREAMS, Stream
from orthocl.streams.registry import data_of_path
from orthocl.training import TrainSettings

AnyMethod = str | Method | type[Method] | MethodSettings
AnyNet = str | Callable[..., nn.Module] | NetSettings


@dataclass(frozen=True)
class Comparison:
    """The outcome of `compare`: print it, or ask for a table, a figure or a page."""

    results: Results
    metrics: tuple[str, ...] = ()
    store: Store | None = None

    @property
    def records(self) -> list[Record]:
        """The records of all finished runs."""
        return [record for _, record in self.results.pairs]

    def table(self, kind: Format = "markdown") -> str:
        """The table as text: "markdown", "latex", "csv" or "json"."""
        return make_table(self._pairs(), self.metrics).render(kind)

    def figure(self, path: str | Path, kind: str = "accuracy") -> Path:
        """Draw a figure ("accuracy", "first-task", "memorised" or "curves") to an .svg, .pdf or .png file."""
        return save_figure(make_figure(kind, self._pairs()), Path(path))

    def report(self, path: str | Path) -> Path:
        """Write the self-contained HTML page."""
        return write_report(
            path,
            self._pairs(),
            title=self.results.experiment.name,
            metrics=self.metrics,
            failures=self.results.failures,
            store=self.store,
        )

    def __str__(self) -> str:
        failures = [f"failed: {one.settings.label}: {one.reason}" for one in self.results.failures]
        return "\n".join([self.table() if self.results.pairs else "no finished runs", *failures])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """A table for notebooks; the best of each stream and its ties are bold."""
        made = make_table(self.results.pairs, self.metrics)
        rows = [["stream", "method", "seeds", *made.titles()]]
        for row in made.rows:
            cells = zip(row.cells, row.marks, strict=True)
            numbers = [f"<b>{cell.text()}</b>" if mark else cell.text() for cell, mark in cells]
            rows.append([escape(row.stream), escape(row.method), str(len(row.seeds)), *numbers])
        tags = ["th", *("td" for _ in made.rows)]
        lines = [
            "".join(f"<{tag}>{cell}</{tag}>" for cell in row) for tag, row in zip(tags, rows, strict=True)
        ]
        failures = [
            f"<p>failed: {escape(one.settings.label)}: {escape(one.reason)}</p>"
            for one in self.results.failures
        ]
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>{''.join(failures)}"

    def _pairs(self) -> list[tuple[RunSettings, Record]]:
        if not self.results.pairs:
            reasons = "; ".join(dict.fromkeys(outcome.reason for outcome in self.results.failures))
            raise DataError(f"none of the runs has finished: {reasons or 'run them first'}")
        return self.results.pairs


def compare(
    stream: str | Stream | StreamSettings,
    methods: Sequence[AnyMethod] | Mapping[str, AnyMethod],
    *,
    net: AnyNet = "mlp",
    seeds: int | Sequence[int] = 3,
    train: TrainSettings | Mapping[str, Any] | None = None,
    metrics: Sequence[str] = (),
    store: str | Path = "orthocl-store",
    jobs: int | None = None,
    data_root: str | Path | None = None,
    on_event: OnEvent | None = None,
) -> Comparison:
    """Run methods on a stream with several seeds, and compare the results.

    Finished runs are kept in the store and not repeated; after an interruption the same call resumes.

    Args:
        stream: a stream, the name of one, a folder of images, an .npz file, or "file.py:function".
        methods: names, "file.py:Class", or methods such as `OGDPlus(memory_per_task=50)`; a dict gives them labels.
        net: a name, "file.py:function", or a function of (input_shape, outputs) that builds a network.
        seeds: how many (1, 2, ...), or a list of them.
        train: how to train each task.
        metrics: columns of the table.
        store: where records go.
        jobs: runs at a time, each in its own process; 0 runs them in this process. By default all cores, or this
            process if a part exists only here (a stream in memory, a function in a notebook).
        data_root: folder with the data sets.
        on_event: called with every event, instead of showing progress.

    >>> import tempfile
    >>> found = compare(
    ...     StreamSettings("rotated-mnist-mini", tasks=2, train_size=40, test_size=20),
    ...     ["sgd", "ogd"], seeds=1, train={"epochs": 1}, store=tempfile.mkdtemp(), jobs=0,
    ...     on_event=lambda event: None,
    ... )
    >>> [record.settings.method.name for record in found.records]
    ['sgd', 'ogd']
    """
    chosen = list(range(1, seeds + 1)) if isinstance(seeds, int) else list(seeds)
    if not chosen or not methods:
        raise SettingsError("compare needs at least one method and one seed")
    how = (
        train
        if isinstance(train, TrainSettings)
        else make_checked(TrainSettings, train or {}, "train setting")
    )
    stream_settings, stream_label = _stream(stream)
    labelled = methods if isinstance(methods, Mapping) else _labelled(methods)
    runs = [
        RunSettings(stream_settings, _method(label, method), _net(net), how, seed, stream_label, label)
        for label, method in labelled.items()
        for seed in chosen
    ]
    if jobs is None:
        jobs = (os.cpu_count() or 1) if all(_can_travel(run) for run in runs) else 0
    elif jobs and not all(_can_travel(run) for run in runs):
        raise SettingsError(
            "a part of this comparison exists only in this process (a stream in memory, a function in a notebook), so "
            "other processes cannot execute its runs: use jobs=0, or put it into a file and give it as file.py:Object"
        )
    experiment = Experiment(f"{', '.join(labelled)} on {stream_label}", tuple(runs), metrics=tuple(metrics))
    options = RunOptions(data_root=None if data_root is None else str(data_root))
    results = run_experiment(experiment, store, jobs=jobs, options=options, on_event=on_event)
    for warning in identical_seeds(results.pairs):
        warn(warning)
    return Comparison(results, tuple(metrics), Store(store))


def _stream(stream: str | Stream | StreamSettings) -> tuple[StreamSettings, str]:
    if isinstance(stream, StreamSettings):
        return stream, label_of(stream.name)
    if isinstance(stream, str):
        data = data_of_path(stream)
        name = next(iter(data), stream)
        return StreamSettings(name, options=data), label_of(stream)
    if not isinstance(stream, Stream):
        raise SettingsError(
            f"expected a stream or its name, got a {type(stream).__name__}: orthocl.streams.from_arrays and "
            "from_datasets make streams of your data"
        )
    name = f"{stream.name}-{stream.fingerprint[:8]}"
    STREAMS.add(name, stream)
    return StreamSettings(name), stream.name


def _labelled(methods: Sequence[AnyMethod]) -> dict[str, AnyMethod]:
    found: dict[str, AnyMethod] = {}
    for method in methods:
        name = label_of(method) if isinstance(method, str) else method.name
        label = name or type(method).__name__
        if label in found:
            raise SettingsError(f"two methods are called {label!r}: give a dict of label -> method")
        found[label] = method
    return found


def _method(label: str, method: AnyMethod) -> MethodSettings:
    if isinstance(method, MethodSettings):
        return method
    if isinstance(method, str):
        return MethodSettings(method)
    kind, settings = (method, {}) if isinstance(method, type) else (type(method), method.settings())
    part = METHODS.describe(kind)
    if part.spec:
        return MethodSettings(part.spec, settings)
    METHODS.add(label, kind)
    return MethodSettings(label, settings)


def _net(net: AnyNet) -> NetSettings:
    if isinstance(net, NetSettings):
        return net
    if isinstance(net, str):
        return NetSettings(net)
    part = NETS.describe(net)
    if not part.spec:
        NETS.add(part.name, net)
    return replace(NetSettings(), name=part.spec or part.name)


def _can_travel(run: RunSettings) -> bool:
    """Whether another process can find all parts of a run."""
    parts = (STREAMS.find(run.stream.name), METHODS.find(run.method.name), NETS.find(run.net.name))
    return all(part.spec for part in parts)
