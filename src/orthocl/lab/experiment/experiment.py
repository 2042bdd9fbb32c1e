"""Experiments: a TOML file that says which methods run on which streams with which seeds and settings.

    name = "small"
    include = ["protocol.toml"]          # read first, in order; this file wins
    seeds = [1, 2, 3]
    only = ["turned/*"]                  # patterns: choose among what the tables make, as --only does
    # streams = ["rotated-mnist-mini"] and methods = ["sgd", "ogd+"] would do instead of the tables below
    # your own parts: methods = ["my_method.py:Leash"], net.name = "my_net.py:build", streams = ["my_data.py:make"]

    [train]                              # for all runs; [net], [stream] and [method] likewise
    epochs = 5

    [streams.birds]
    folder = "photos"                    # your images, by class; arrays = "tasks.npz" for arrays

    [streams.turned]                     # a label; without `stream` it is the stream's name itself
    stream = "rotated-mnist-mini"
    step = 10.0
    train.epochs = 2                     # for all methods on this stream

    [methods.sgd]

    [methods.ewc]
    strength = 10.0                      # hyperparameters stand directly in the table
    train.learning_rate = 0.01           # for this method on all streams

    [streams.turned.methods.ewc]         # for this pair: overrides both
    strength = 100.0

    [methods.ewc.grid]                   # all combinations; also at the top and in a stream's table
    method.strength = [1.0, 10.0]

The later wins: top, stream, method, pair, grid, `--set`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from orthocl.checking import check_names
from orthocl.errors import OrthoclError, SettingsError, UnlikelyError, unknown_name
from orthocl.formatting import counted
from orthocl.lab.experiment.entries import patterns_of, seeds_of, text_of
from orthocl.lab.experiment.file import TomlTable, merge, read_file
from orthocl.lab.experiment.grid import flat, grid_points, nested, parse_overrides, point_label
from orthocl.lab.experiment.only import fits, without_axes
from orthocl.lab.experiment.settings import PATHS, RunSettings, StreamSettings, method_fields
from orthocl.lab.experiment.specs import label_of
from orthocl.methods import METHODS
from orthocl.streams import STREAMS
from orthocl.streams.registry import data_of_path

TOP = (
    *("name", "description", "include", "seeds", "streams", "methods", "only"),
    *("train", "net", "stream", "method", "grid", "table", "search"),
)
MOST_RUNS = 100_000
MOST_TASKS = 10_000
MOST_EPOCHS = 1_000_000
"""Experiments with more runs, streams with more tasks and training for longer are taken for slips of the pen."""
STREAM_KEYS = [item.name for item in fields(StreamSettings) if item.name not in ("name", "options", "source")]


@dataclass(frozen=True)
class Experiment:
    """Runs with a name.

    Args:
        name: from the file, or the file's own name.
        runs: all runs, in the order of streams, methods, grid points and seeds.
        description: a sentence or two for the report.
        metrics: columns of the table; the usual ones if empty.
        search: the file's [search] table, for `orthocl search`.
    """

    name: str
    runs: tuple[RunSettings, ...]
    description: str = ""
    metrics: tuple[str, ...] = ()
    search: Mapping[str, Any] = field(default_factory=dict)


def load_experiment(
    path: str | Path,
    *,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    overrides: Mapping[str, Any] | Sequence[str] = (),
    any_size: bool = False,
) -> Experiment:
    """Read an experiment file.

    Args:
        path: the TOML file.
        only: patterns such as "ogd*" (a stream or a method) or "rotated*/ogd+" (a pair); all runs by default.
        seeds: instead of the file's.
        overrides: {"train.epochs": 1}, or texts "train.epochs=1": they override everything else in every run.
        any_size: allow what can hardly be meant, such as 10^9 tasks.

    Raises:
        SettingsError: for an unknown key or name, with the nearest known one, and for impossible values.
        UnlikelyError: for more than `MOST_TASKS` tasks, `MOST_RUNS` runs or `MOST_EPOCHS` epochs, unless `any_size`.
    """
    content = read_file(Path(path))
    content.setdefault("name", Path(path).stem)
    try:
        return make_experiment(content, only=only, seeds=seeds, overrides=overrides, any_size=any_size)
    except UnlikelyError as error:
        raise UnlikelyError(f"{path}: {error}") from error
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def make_experiment(
    content: Mapping[str, Any],
    *,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    overrides: Mapping[str, Any] | Sequence[str] = (),
    any_size: bool = False,
) -> Experiment:
    """An experiment from the content of a file; arguments as for `load_experiment`.

    >>> content = {"streams": ["rotated-mnist-mini"], "methods": ["sgd", "ogd"], "seeds": [1, 2]}
    >>> [run.label for run in make_experiment(content, only=["ogd"]).runs]
    ['rotated-mnist-mini / ogd / seed 1', 'rotated-mnist-mini / ogd / seed 2']
    """
    content = _with_labels(merge({}, content))
    streams, methods = _labels(content, "streams"), _labels(content, "methods")
    for key in content:
        if key not in (*TOP, "selected"):
            raise unknown_name("key of an experiment", key, TOP)
    changes = parse_overrides(overrides)
    used_seeds = seeds_of(list(seeds) or content.get("seeds", [0]))
    _check_shared_hyperparameters(content, changes, methods)
    most = None if any_size else MOST_RUNS
    pairs = [
        run
        for stream in streams
        for method in methods
        for run in _pair(content, stream, method, changes, most)
    ]
    if not any_size:
        _check_size(pairs, len(used_seeds))
    runs = [replace(run, seed=seed) for run in pairs for seed in used_seeds]
    return Experiment(
        text_of(content, "name", "experiment"),
        tuple(select(select(runs, patterns_of(content)), only)),
        text_of(content, "description", ""),
        _metrics(content),
        _plain_table(content, "search", None),
    )


def _check_size(pairs: Sequence[RunSettings], seeds: int) -> None:
    """Reject what can hardly be meant."""
    if len(pairs) * seeds > MOST_RUNS:
        raise UnlikelyError(f"this experiment has {counted(len(pairs) * seeds, 'run')}")
    for run in pairs:
        if (run.stream.tasks or 0) > MOST_TASKS:
            raise UnlikelyError(
                f"{run.stream_label or run.stream.name} has {counted(run.stream.tasks or 0, 'task')}"
            )
        if run.train.epochs > MOST_EPOCHS:
            raise UnlikelyError(f"{run.label} trains each task for {counted(run.train.epochs, 'epoch')}")


def select(runs: Sequence[RunSettings], only: Sequence[str]) -> list[RunSettings]:
    """The runs that match any of the patterns; all of them if there are none."""
    chosen: list[RunSettings] = list(runs)
    if only:
        for pattern in only:
            if not any(fits(run.stream_label, run.method_label, pattern) for run in runs):
                names = {
                    without_axes(label) for run in runs for label in (run.stream_label, run.method_label)
                }
                raise unknown_name("stream or method", pattern, names)
        chosen = [
            run for run in runs if any(fits(run.stream_label, run.method_label, pattern) for pattern in only)
        ]
    return chosen


# ---- one pair of a stream and a method ------------------------------------------------------------------------


def _pair(
    content: TomlTable, stream: str, method: str, changes: TomlTable, most: int | None
) -> list[RunSettings]:
    """The runs of one pair: one per grid point, without seeds."""
    stream_table = _entry(content, "streams", stream)
    method_table = _entry(content, "methods", method)
    stream_name, stream_table = _stream_of(stream, stream_table)
    method_name = str(method_table.get("method", method))
    METHODS.find(method_name)
    known = {*content["methods"], *_labels(content, "methods")}
    pairs = _plain_table(stream_table, "methods", known, f"method in [streams.{stream}.methods]")
    pair_table = _plain_table(pairs, method, None)
    layers = [
        _top_layer(content, stream_name, method_name),
        _stream_layer(stream_table, f"[streams.{stream}]", stream_name),
        _method_layer(method_table, f"[methods.{method}]", method_name),
        _method_layer(pair_table, f"[streams.{stream}.methods.{method}]", method_name),
    ]
    shared = flat(_plain_table(content, "grid", None)) | flat(_plain_table(stream_table, "grid", None))
    axes = {key: values for key, values in shared.items() if _applies(key, method_name)}
    axes |= flat(_plain_table(method_table, "grid", None)) | flat(_plain_table(pair_table, "grid", None))
    where = f"[streams.{stream}] with [methods.{method}]"
    last = _applicable(changes, method_name)
    runs = []
    for point in grid_points(axes, most):
        run = _assemble([*layers, nested(point), last], stream_name, method_name, where)
        of_stream = {key: value for key, value in point.items() if key.startswith("stream.")}
        of_method = {key: value for key, value in point.items() if key not in of_stream}
        labels = point_label(stream, of_stream), point_label(method, of_method)
        runs.append(replace(run, stream_label=labels[0], method_label=labels[1]))
    return runs


def _with_labels(content: TomlTable) -> TomlTable:
    """The content, with the user's own specs in lists turned into labelled tables."""
    for section, key in (("streams", "stream"), ("methods", "method")):
        chosen = content.get("selected", {}).get(section)
        if chosen is None:
            continue
        labels = []
        for spec in chosen:
            if not isinstance(spec, str):
                raise SettingsError(f"`{section}` must be a list of names, got {spec!r}")
            label = spec if spec in content[section] else label_of(spec)
            if label != spec and section == "methods":
                label = METHODS[spec].name or label
            if label != spec and label not in content[section]:
                content[section] = {**content[section], label: {key: spec}}
            labels.append(label)
        content["selected"] = {**content["selected"], section: labels}
    return content


def _stream_of(label: str, table: TomlTable) -> tuple[str, TomlTable]:
    """The spec of a labelled stream, and its table with the data that a path stands for."""
    for key in PATHS:
        if key in table:
            return key, table
    spec = str(table.get("stream", label))
    data = data_of_path(spec)
    if data:
        (name,) = data
        return name, {**{k: v for k, v in table.items() if k != "stream"}, **data}
    STREAMS.find(spec)
    return spec, table


def _top_layer(content: TomlTable, stream: str, method: str) -> TomlTable:
    known_stream = [*STREAM_KEYS, *STREAMS[stream].options]
    shared = _plain_table(content, "method", None)
    return {
        "train": _plain_table(content, "train", None),
        "net": _plain_table(content, "net", None),
        "stream": {k: v for k, v in _stream_keys(content, stream).items() if k in known_stream},
        "method": {key: value for key, value in shared.items() if key in method_fields(method)},
    }


def _stream_keys(content: TomlTable, stream: str) -> TomlTable:
    """The [stream] table; its keys must be known to some stream."""
    makers = [*STREAMS.values(), STREAMS[stream]]
    known = {*STREAM_KEYS, *(key for maker in makers for key in maker.options)}
    return _plain_table(content, "stream", known)


def _stream_layer(table: TomlTable, where: str, name: str) -> TomlTable:
    own = [*STREAM_KEYS, *STREAMS[name].options]
    for key in table:
        if key not in (known := ["stream", "train", "net", "method", "methods", "grid", *own]):
            raise unknown_name(f"key of {where}", key, known)
    return {
        "train": _plain_table(table, "train", None),
        "net": _plain_table(table, "net", None),
        "stream": {key: value for key, value in table.items() if key in own},
        "method": _plain_table(table, "method", None),
    }


def _method_layer(table: TomlTable, where: str, name: str) -> TomlTable:
    own = method_fields(name)
    for key in table:
        if key not in (known := ["method", "train", "net", "grid", *own]):
            raise unknown_name(f"key of {where}", key, known)
    return {
        "train": _plain_table(table, "train", None),
        "net": _plain_table(table, "net", None),
        "method": {key: value for key, value in table.items() if key in own},
    }


def _assemble(layers: Sequence[TomlTable], stream: str, method: str, where: str) -> RunSettings:
    """One run from layers of settings, the later ones winning."""
    train: TomlTable = {}
    net: TomlTable = {"name": "mlp"}
    stream_values: TomlTable = {}
    method_values: TomlTable = {}
    for layer in layers:
        train |= layer.get("train", {})
        new = layer.get("net", {})
        if new.get("name", net["name"]) != net["name"]:
            net = {}  # another network: the settings so far were for the old one
        net |= new
        stream_values |= layer.get("stream", {})
        method_values |= layer.get("method", {})
    options = {key: value for key, value in stream_values.items() if key not in STREAM_KEYS}
    plain = {key: value for key, value in stream_values.items() if key in STREAM_KEYS}
    values = {
        "stream": {"name": stream, **plain, "options": options},
        "method": {"name": method, "settings": method_values},
        "net": {"name": net["name"], "settings": {k: v for k, v in net.items() if k != "name"}},
        "train": train,
    }
    try:
        run = RunSettings.from_dict(values)
        run.resolved()
    except OrthoclError as error:
        raise SettingsError(f"{where}: {error}") from error
    return run


# ---- what applies where ---------------------------------------------------------------------------------------


def _applies(key: str, method: str) -> bool:
    level, _, name = key.partition(".")
    return level != "method" or name in method_fields(method)


def _applicable(changes: TomlTable, method: str) -> TomlTable:
    mine = {key: value for key, value in changes.get("method", {}).items() if key in method_fields(method)}
    return {**changes, "method": mine}


def _check_shared_hyperparameters(content: TomlTable, changes: TomlTable, labels: Sequence[str]) -> None:
    """Those of a file must be known to some method, those of the command line to a method that is run."""
    entries = {name: _entry(content, "methods", name) for name in (*content["methods"], *labels)}
    specs = {*METHODS, *(str(entry.get("method", name)) for name, entry in entries.items())}
    known = {key for spec in specs for key in method_fields(spec)}
    grid = _plain_table(_plain_table(content, "grid", None), "method", None)
    check_names("hyperparameter of any method", {**_plain_table(content, "method", None), **grid}, known)
    names = [str(_entry(content, "methods", label).get("method", label)) for label in labels]
    here = {key for name in names for key in method_fields(name)}
    for key in changes.get("method", {}):
        if key not in here:
            raise unknown_name("hyperparameter of the methods here", key, here)


def _metrics(content: TomlTable) -> tuple[str, ...]:
    metrics = _plain_table(content, "table", ("metrics",)).get("metrics", [])
    if not isinstance(metrics, list) or not all(isinstance(name, str) for name in metrics):
        raise SettingsError(f'`table.metrics` must be a list of names such as "aac", got {metrics!r}')
    return tuple(metrics)


def _labels(content: TomlTable, section: str) -> list[str]:
    tables = content.get(section, {})
    if not isinstance(tables, Mapping):
        raise SettingsError(f"`{section}` must be a list of names or a table of tables, got {tables!r}")
    labels = [str(name) for name in content.get("selected", {}).get(section, tables)]
    if not labels:
        raise SettingsError(
            f"an experiment needs at least one name in `{section}`, such as {section} = [...]"
        )
    return labels


def _entry(content: TomlTable, section: str, label: str) -> TomlTable:
    return _plain_table(content[section], label, None)


def _plain_table(table: Mapping[str, Any], key: str, known: Any, what: str = "") -> TomlTable:
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise SettingsError(f"[{key}] must be a table, got {value!r}")
    if known is not None:
        for name in value:
            if name not in known:
                raise unknown_name(what or f"key of [{key}]", name, known)
    return dict(value)
