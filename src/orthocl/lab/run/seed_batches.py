"""Several seeds of one setting, executed in one process as one computation where that saves time.

Each network keeps its own products and sums (`training/mlp_steps.py`), so the results do not depend on which runs are
put together. Nothing is lost if that fails: each run continues alone from its own checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise

import torch

from orthocl.lab.experiment.settings import RunSettings, run_id
from orthocl.lab.run.execute import Attempt, RunObserver, RunOptions, make_stream, threads
from orthocl.lab.store.record import Record
from orthocl.lab.store.run_lock import ClaimedError
from orthocl.lab.store.store import Store
from orthocl.training.loop import train_members, why_not_together

LARGEST_GROUP = 5
LARGEST_WIDTH = 150
"""More seeds, or wider layers, in one computation gain nothing: by then most of the time goes into arithmetic."""


def group(todo: Mapping[str, RunSettings], processes: int) -> list[tuple[str, ...]]:
    """Groups of ids of runs to be executed together, in the order of their first; most groups hold one run.

    Seeds of one setting of plain training are put together, but not so many that a process would be idle.

    >>> def run(method, seed):
    ...     values = {"stream": {"name": "rotated-mnist-mini"}, "method": {"name": method}, "seed": seed}
    ...     return RunSettings.from_dict(values)
    >>> group({"a": run("sgd", 1), "b": run("ogd", 1), "c": run("sgd", 2), "d": run("ogd", 2)}, processes=2)
    [('a', 'c'), ('b',), ('d',)]
    >>> group({"a": run("sgd", 1), "c": run("sgd", 2)}, processes=2)
    [('a',), ('c',)]
    """
    families: dict[str, list[str]] = {}
    for run, settings in todo.items():
        families.setdefault(settings.resolved().without_seed() if _is_plain(settings) else run, []).append(
            run
        )
    groups = []
    for family in families.values():
        pieces = max(-(-processes * len(family) // len(todo)), -(-len(family) // LARGEST_GROUP))
        bounds = [len(family) * piece // pieces for piece in range(pieces + 1)]
        groups += [tuple(family[a:b]) for a, b in pairwise(bounds) if a < b]
    order = {run: place for place, run in enumerate(todo)}
    return sorted(groups, key=lambda runs: order[runs[0]])


def _is_plain(settings: RunSettings) -> bool:
    """A cheap check whether `why_not_together` may accept a run, and whether the run gains by it."""
    resolved = settings.resolved()
    if resolved.method.name != "sgd" or resolved.net.name != "mlp":
        return False
    return all(width <= LARGEST_WIDTH for width in resolved.net.settings["hidden"])


def execute_together(
    runs: Sequence[RunSettings],
    store: Store,
    *,
    options: RunOptions = RunOptions(),  # noqa: B008  # frozen
    observers: Sequence[Sequence[RunObserver]] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Record] | None:
    """Execute several runs as one computation.

    Args:
        runs: what to run: different seeds of one setting.
        store: where their records go.
        options: how to run them.
        observers: the watchers of each.
        stop: asked now and then; when true, checkpoints are written and `InterruptedRun` raised.

    Returns:
        Their records, or None if they cannot be executed together now: execute each alone.
    """
    settings = [run.resolved() for run in runs]
    streams = {run.stream: make_stream(run.stream, options.data_root) for run in settings}
    ids = [run_id(run, streams[run.stream].fingerprint) for run in settings]
    with ExitStack() as stack:
        try:
            claims = [stack.enter_context(store.claim(run)) for run in ids]
        except ClaimedError:
            return None
        if any(store.record(run) is not None for run in ids):
            return None
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(threads(options.threads))
        one_stop = _SameAnswer(stop, len(runs))
        attempts = [
            Attempt(run, streams[run.stream], key, store, claim, options, watchers, one_stop, len(runs))
            for run, key, claim, watchers in zip(
                settings, ids, claims, observers or [()] * len(runs), strict=True
            )
        ]
        if {attempt.begin() for attempt in attempts} != {torch.get_num_threads()}:
            return None
        for attempt in attempts:
            attempt.prepare()
        members = [attempt.member for attempt in attempts]
        if why_not_together(members) is not None:
            return None
        for attempt in attempts:
            for observer in attempt.observers:
                stack.callback(observer.on_end)
                observer.on_run(attempt.run, attempt.settings, store.folder(attempt.run))
        progresses = train_members(members, settings[0].train)
        records = [a.conclude(progress) for a, progress in zip(attempts, progresses, strict=True)]
        for attempt, record in zip(attempts, records, strict=True):
            for observer in attempt.observers:
                observer.on_record(record)
            attempt.claim.finish()
        return records


class _SameAnswer:
    """Gives the same answer to all runs that ask at a step, so that all of them write a checkpoint, or none."""

    def __init__(self, stop: Callable[[], bool], runs: int):
        self._stop, self._runs, self._asked, self._answer = stop, runs, 0, False

    def __call__(self) -> bool:
        if self._asked % self._runs == 0:
            self._answer = self._stop()
        self._asked += 1
        return self._answer
