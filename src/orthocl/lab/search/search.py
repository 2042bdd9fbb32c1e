"""Search: which point of a grid is best, for each pair of a stream and a method.

The candidates are the grid points of an experiment file; the score is a metric (average accuracy by default) of the
file's seed, or its mean over seeds. The [search] table of the file, all of it optional:

    [search]
    metric = "aac"
    after = [2, 5]     # compare all candidates after 2 tasks and those left after 5 ...
    keep = 0.5         # ... and keep the better half each time
    samples = 50       # draw this many points of each grid at random instead of taking all

Cutting (successive halving) pauses runs and never changes them: a run that is kept resumes from its checkpoint and ends
with the same result as without cutting, and one that was cut can be finished later. Which were cut, when and at what
score, is part of the result. An interrupted search resumes when it is called again, because its state is that of its
runs.

Why not Optuna: its storage would duplicate what the store already knows, without the store's claims and
checkpoints; its pruners need a callback within the process of the run, whereas pausing works the same on every
executor; and the grids of the paper are finite, so that its samplers could only draw points from them, as `samples`
does.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from orthocl.errors import SettingsError, shortened, unknown_name
from orthocl.formatting import counted
from orthocl.lab.experiment.experiment import Experiment
from orthocl.lab.experiment.grid import flat
from orthocl.lab.experiment.only import without_axes
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.laboratory import Results, run_experiment
from orthocl.lab.reporting.table import LOWER_IS_BETTER
from orthocl.lab.run.execute import RunOptions, identify
from orthocl.lab.store.record import readable_json
from orthocl.lab.store.store import Store
from orthocl.metrics import METRICS, AccuracyMatrix, compute
from orthocl.storage import write_atomically
from orthocl.training.seeds import derive_generator

TrialStatus = Literal["finished", "cut", "failed", "unsupported", "unfinished"]
MOST_NAME_BYTES = 200
Make = Callable[[Experiment, RunOptions], Results]


@dataclass(frozen=True)
class SearchSettings:
    """How to search.

    Args:
        metric: the score, by its name.
        after: numbers of tasks after which the worse candidates are cut; never by default.
        keep: the share of candidates kept each time.
        samples: number of points drawn at random from each grid; all of them by default.
    """

    metric: str = "aac"
    after: tuple[int, ...] = ()
    keep: float = 0.5
    samples: int | None = None

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise unknown_name("metric", self.metric, METRICS)
        if not all(isinstance(tasks, int) and tasks > 0 for tasks in self.after):
            raise SettingsError(f"`after` must be a list of numbers of tasks, got {list(self.after)}")
        if not 0 < self.keep < 1:
            raise SettingsError(f"`keep` must be between 0 and 1, got {self.keep}")
        if self.samples is not None and self.samples < 1:
            raise SettingsError(f"`samples` must be at least 1, got {self.samples}")

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> SearchSettings:
        """From the [search] table of an experiment file.

        >>> SearchSettings.from_table({"after": 2, "keep": 0.25})
        SearchSettings(metric='aac', after=(2,), keep=0.25, samples=None)
        """
        known = ("metric", "after", "keep", "samples")
        for key in table:
            if key not in known:
                raise unknown_name("key of [search]", key, known)
        after = table.get("after", ())
        try:
            return cls(**{**table, "after": tuple(sorted([after] if isinstance(after, int) else after))})
        except TypeError as error:
            raise SettingsError(f"[search] has a value of the wrong kind: {dict(table)}") from error


@dataclass
class Trial:
    """One point of a grid.

    Args:
        point: the values of the axes, such as {"method.strength": 10.0}.
        runs: its runs, one per seed.
        ids: their identities.
        status: what became of it.
        score: the metric after the last task; None unless finished.
        cut_after: number of tasks after which it was cut.
        early: number of tasks -> score at that point, where it was compared.
        tied_after: numbers of tasks after which it was one of several that shared the last place of those to keep:
            all of them were kept, more than the share that was asked for.
        reason: why it failed or is unsupported.
    """

    point: dict[str, Any]
    runs: list[RunSettings]
    ids: list[str] = field(default_factory=list)
    status: TrialStatus = "unfinished"
    score: float | None = None
    cut_after: int | None = None
    early: dict[int, float] = field(default_factory=dict)
    tied_after: list[int] = field(default_factory=list)
    reason: str = ""


@dataclass
class SearchGroup:
    """All candidates for one stream and method."""

    stream: str
    method: str
    axes: dict[str, list[Any]]
    trials: list[Trial]


@dataclass
class SearchResult:
    """What a search found."""

    name: str
    settings: SearchSettings
    groups: list[SearchGroup]

    def best(self, group: SearchGroup) -> Trial | None:
        """The finished trial with the best score; the first of equals."""
        return next(iter(self.bests(group)), None)

    def bests(self, group: SearchGroup) -> list[Trial]:
        """All finished trials that share the best score."""
        done = [trial for trial in group.trials if trial.status == "finished" and trial.score is not None]
        highest = max((self.rank(trial.score) for trial in done), default=0.0)
        return [trial for trial in done if self.rank(trial.score) == highest]

    def rank(self, score: float | None) -> float:
        """Larger is better; a trial without a score is worst."""
        if score is None or math.isnan(score):
            return -math.inf
        return -score if self.settings.metric in LOWER_IS_BETTER else score

    def to_json(self) -> str:
        """Every candidate with its score, status and runs."""
        groups = [
            {
                "stream": group.stream,
                "method": group.method,
                "axes": group.axes,
                "best": None if (best := self.best(group)) is None else best.point,
                "trials": [
                    {
                        "point": trial.point,
                        "status": trial.status,
                        "score": trial.score,
                        "cut_after": trial.cut_after,
                        "tied_after": trial.tied_after,
                        "early": {str(tasks): _finite(score) for tasks, score in trial.early.items()},
                        "reason": trial.reason,
                        "runs": trial.ids,
                    }
                    for trial in group.trials
                ],
            }
            for group in self.groups
        ]
        settings = {**vars(self.settings), "after": list(self.settings.after)}
        return readable_json({"name": self.name, "search": settings, "groups": groups}) + "\n"

    def to_toml(self) -> str:
        """The best settings of each pair as tables of an experiment file: paste them, or include the file."""
        parts = [f"# Best of {self.name} by {self.settings.metric}."]
        for group in self.groups:
            best = self.best(group)
            if best is None:
                parts.append(f"# {group.stream} / {group.method}: no candidate was finished.")
                continue
            tried, cut = len(group.trials), sum(trial.status == "cut" for trial in group.trials)
            note = f", {cut} cut early" if cut else ""
            equals = len(self.bests(group)) - 1
            note += f"; {equals} more equally good, the first was taken" if equals else ""
            lines = [
                f"# {self.settings.metric} {best.score:.4f}, best of {counted(tried, 'candidate')}{note}."
            ]
            lines.append(f"[streams.{_key(group.stream)}.methods.{_key(group.method)}]")
            for name, value in best.point.items():
                level, _, rest = name.partition(".")
                lines.append(f"{rest if level == 'method' else name} = {toml_text(value)}")
            parts.append("\n".join(lines))
        return "\n\n".join(parts) + "\n"


def run_search(
    experiment: Experiment,
    store: Store | str | Path,
    *,
    settings: SearchSettings | None = None,
    options: RunOptions | None = None,
    make: Make | None = None,
) -> SearchResult:
    """Search the grids of an experiment, or resume a search, and write its result to the store.

    Args:
        experiment: from `load_experiment`; its runs are the candidates.
        store: where runs are kept and `searches/<name>.json` is written.
        settings: how to search; the file's own by default.
        options: how to execute runs.
        make: executes the runs of an experiment; one after another on this machine by default.
    """
    store = store if isinstance(store, Store) else Store(store)
    path = result_path(store, experiment.name)
    settings = SearchSettings.from_table(experiment.search) if settings is None else settings
    options = options or RunOptions()
    make = make or (lambda part, how: run_experiment(part, store, options=how))
    result = SearchResult(experiment.name, settings, find_groups(experiment, settings))
    _identify(result, options.data_root)
    alive = [list(group.trials) for group in result.groups]
    for tasks in settings.after:
        _make(experiment, alive, store, replace(options, pause_after=tasks), make)
        for group, trials in zip(result.groups, alive, strict=True):
            if tasks < _tasks(group):
                trials[:] = _cut(result, trials, store, tasks)
    failures = _make(experiment, alive, store, options, make)
    for group in result.groups:
        for trial in group.trials:
            _conclude(trial, store, settings.metric, failures)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, result.to_json().encode())
    return result


def result_path(store: Store, name: str) -> Path:
    """Where the result of a search goes: `searches/<name>.json` of the store.

    Raises:
        SettingsError: the name cannot be that of a file in this folder.
    """
    odd = not name.isprintable() or name.startswith(".") or any(sign in name for sign in "/\\")
    if not name.strip() or odd or len(name.encode()) > MOST_NAME_BYTES:
        raise SettingsError(
            f"the name of a search is that of a file, so it must be 1 to {MOST_NAME_BYTES} printable letters, without "
            f"'/' or '\\' and without a dot in front, got {shortened(name)!r}: change `name` in the experiment"
        )
    return store.directory / "searches" / f"{name}.json"


def find_groups(experiment: Experiment, settings: SearchSettings) -> list[SearchGroup]:
    """The candidates of an experiment, by stream and method."""
    gathered: dict[tuple[str, str], dict[str, list[RunSettings]]] = {}
    for run in experiment.runs:
        method = without_axes(run.method_label or run.method.name)
        pair = gathered.setdefault((run.stream_label or run.stream.name, method), {})
        pair.setdefault(run.resolved().without_seed(), []).append(run)
    groups = []
    for (stream, method), points in gathered.items():
        candidates = list(points.values())
        if settings.samples is not None and settings.samples < len(candidates):
            order = torch.randperm(len(candidates), generator=derive_generator("search", stream, method))
            candidates = [candidates[i] for i in sorted(order[: settings.samples].tolist())]
        values = [_values(runs[0]) for runs in candidates]
        axes = {
            key: _distinct([value[key] for value in values])
            for key in values[0]
            if any(value[key] != values[0][key] for value in values)
        }
        trials = [
            Trial({key: value[key] for key in axes}, runs)
            for value, runs in zip(values, candidates, strict=True)
        ]
        groups.append(SearchGroup(stream, method, axes, trials))
    return groups


def _identify(result: SearchResult, data_root: str | None) -> None:
    trials = [trial for group in result.groups for trial in group.trials]
    ids = iter(identify([run for trial in trials for run in trial.runs], data_root))
    for trial in trials:
        trial.ids = [next(ids) for _ in trial.runs]


def _make(
    experiment: Experiment, alive: Sequence[Sequence[Trial]], store: Store, options: RunOptions, make: Make
) -> dict[str, str]:
    """Execute all runs of the trials that have not got far enough yet; returns why some failed."""
    runs = [
        settings
        for trials in alive
        for trial in trials
        for run, settings in zip(trial.ids, trial.runs, strict=True)
        if store.record(run) is None
        and (options.pause_after is None or len(store.progress(run)[1:]) < options.pause_after)
    ]
    if not runs:
        return {}
    results = make(replace(experiment, runs=tuple(runs)), options)
    return {failure.run: failure.reason for failure in results.failures}


def _cut(result: SearchResult, trials: Sequence[Trial], store: Store, tasks: int) -> list[Trial]:
    """The trials to keep: the best share, and those as good as the last of them.

    Equal scores are no accident: after one task, the strengths of a penalty on later tasks cannot be told apart.
    """
    for trial in trials:
        trial.early[tasks] = _mean(
            [score_after(run, store, result.settings.metric, tasks) for run in trial.ids]
        )
    ranks = [result.rank(trial.early[tasks]) for trial in trials]
    wanted = math.ceil(result.settings.keep * len(trials))
    last = sorted(ranks, reverse=True)[wanted - 1]
    kept = []
    for trial, rank in zip(trials, ranks, strict=True):
        if rank >= last and rank > -math.inf:
            kept.append(trial)
        else:
            trial.status, trial.cut_after = "cut", tasks
    if len(kept) > wanted:
        for trial, rank in zip(trials, ranks, strict=True):
            if rank == last:
                trial.tied_after.append(tasks)
    return kept


def score_after(run: str, store: Store, metric: str, tasks: int) -> float:
    """The metric on the first tasks, just after them, of a run finished or not; NaN if it did not get that far."""
    record = store.record(run)
    rows = store.progress(run) if record is None else record.result.accuracies
    if len(rows) <= tasks:
        return math.nan
    return compute(metric, AccuracyMatrix.from_rows([row[:tasks] for row in rows[: tasks + 1]]))


def _conclude(trial: Trial, store: Store, metric: str, failures: Mapping[str, str]) -> None:
    """The final status of a trial, from the store."""
    records = [store.record(run) for run in trial.ids]
    found = [record for record in records if record is not None]
    refused = [record.reason for record in found if record.status == "unsupported"]
    failed = [reason for run in trial.ids if (reason := failures.get(run) or _failure(run, store))]
    if refused:
        trial.status, trial.reason = "unsupported", refused[0]
    elif len(found) == len(records):  # also one that was cut here, but had been finished before
        trial.score = _mean([record.metric(metric) for record in found])
        trial.status = "cut" if trial.cut_after is not None else "finished"
    elif failed:
        trial.status, trial.reason = "failed", failed[0]


def _failure(run: str, store: Store) -> str:
    noted = store.failure(run)
    return "" if noted is None else str(noted["reason"])


def _tasks(group: SearchGroup) -> int:
    return group.trials[0].runs[0].resolved().stream.tasks or 0


def _values(run: RunSettings) -> dict[str, Any]:
    """Everything but stream and seed, by the names that experiment files use."""
    whole = run.resolved().to_dict()
    levels = {
        "method": whole["method"]["settings"],
        "train": whole["train"],
        "net": {"name": whole["net"]["name"], **whole["net"]["settings"]},
    }
    return flat(levels)


def _distinct(values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in found)
    return sorted(found) if numbers else found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def toml_text(value: Any) -> str:
    """A value as TOML.

    >>> toml_text([1e-05, True, "all"])
    '[1e-05, true, "all"]'
    """
    if isinstance(value, list):
        return f"[{', '.join(map(toml_text, value))}]"
    if value is None:
        raise SettingsError("a setting that is nothing (None) has no form in TOML: leave it out of the grid")
    return json.dumps(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
