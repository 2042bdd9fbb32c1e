"""Which runs of a store a page or figure is about: those of an experiment, or those that patterns choose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orthocl.errors import StoreError, warn
from orthocl.lab.executors.interface import Outcome
from orthocl.lab.experiment.only import fits
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.reporting.groups import agreed_labels, labels
from orthocl.lab.store.record import Record
from orthocl.lab.store.store import Store


class RecordCache:
    """Records of a store that are read again only when their files have changed; damaged ones are skipped."""

    def __init__(self, store: Store):
        self.store = store
        self._known: dict[str, tuple[int, Record | None]] = {}

    def record(self, run: str) -> Record | None:
        """The record of a run, or None if it has none that can be read."""
        try:
            stamp = (self.store.folder(run) / "record.json").stat().st_mtime_ns
        except OSError:
            return None
        if run not in self._known or self._known[run][0] != stamp:
            try:
                self._known[run] = stamp, self.store.record(run)
            except StoreError:
                self._known[run] = stamp, None
        return self._known[run][1]


def failed_runs(
    store: Store, only: Sequence[str] = (), seeds: Sequence[int] = (), runs: Iterable[str] | None = None
) -> list[Outcome]:
    """The runs of a store whose last attempt failed, with the reason.

    Args:
        store: where they are.
        only: patterns of labels, as for `chosen`.
        seeds: the seeds that are wanted; all by default.
        runs: ids to look at; all by default.
    """
    found = []
    for run in store.ids() if runs is None else runs:
        failure = store.failure(run)
        if failure is None or store.state(run) != "failed":
            continue
        try:
            settings = store.settings(run)
        except StoreError as error:
            warn(f"left out: {error}")
            continue
        if (not seeds or settings.seed in seeds) and (
            not only or any(fits(*labels(settings), one) for one in only)
        ):
            found.append(Outcome(run, settings, "failed", None, failure["reason"]))
    return found


def chosen(
    pairs: Iterable[tuple[RunSettings, Record]], only: Sequence[str] = (), seeds: Sequence[int] = ()
) -> list[tuple[RunSettings, Record]]:
    """A store's runs whose labels match a pattern, as `--only` of an experiment does, and whose seed is wanted.

    All seeds of one setting have one label.
    """
    return [
        (settings, record)
        for settings, record in agreed_labels(pairs)
        if (not seeds or settings.seed in seeds)
        and (not only or any(fits(*labels(settings), one) for one in only))
    ]
