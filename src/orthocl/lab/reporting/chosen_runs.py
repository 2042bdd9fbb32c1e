"""Which runs of a store a page or figure is about: those of an experiment, or those that patterns choose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orthocl.errors import StoreError
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
