"""Keep records: copy the results of finished runs into a small store that goes into version control.

A store of kept records has runs/<id>/record.json and runs/<id>/settings.json and nothing else: no weights, no progress.
Where training diverged there is no record, and runs/<id>/failure.json says what happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orthocl.errors import StoreError
from orthocl.lab import RunSettings, Store
from orthocl.lab.experiment.settings import CODE_VERSION
from orthocl.paper.evidence import RecordIndex, diverged_runs, settings_key
from orthocl.storage import write_atomically

KEPT = ("record.json", "settings.json")


@dataclass(frozen=True)
class Kept:
    """What a copy did: ids of the records that are new, of those that were there, and of runs that diverged."""

    new: tuple[str, ...]
    known: tuple[str, ...]
    diverged: tuple[str, ...] = ()


def keep_records(store: Store, into: Store, runs: Sequence[RunSettings] | None = None) -> Kept:
    """Copy the records of a store, or of some runs only, into another, without weights.

    Raises:
        StoreError: when both stores have a result of the same run and they differ.
    """
    if not store.runs.is_dir():
        raise StoreError(f"there is no store in {store.directory}: nothing to keep")
    index = RecordIndex(store)
    found = index.records() if runs is None else [record for _, record in index.find(runs).pairs]
    new, known = [], []
    for record in found:
        there = into.record(record.id)
        if there is not None:
            if there.result_hash != record.result_hash:
                raise StoreError(
                    f"run {record.id} has one result in {store.directory} and another in {into.directory}: remove the "
                    "one that is wrong (orthocl runs rm)"
                )
            known.append(record.id)
            continue
        _copy(store.folder(record.id), into.folder(record.id))
        (into.folder(record.id) / "failure.json").unlink(missing_ok=True)
        new.append(record.id)
    return Kept(tuple(new), tuple(known), _keep_diverged(store, into, runs))


def _keep_diverged(store: Store, into: Store, runs: Sequence[RunSettings] | None) -> tuple[str, ...]:
    """Note which runs diverged, without the traceback, which names files of this machine."""
    wanted = None if runs is None else {settings_key(run) for run in runs}
    found = []
    for run, settings, reason in diverged_runs(store):
        key = settings.without_seed(), settings.seed
        if into.record(run) is None and (wanted is None or key in wanted):
            _copy(store.folder(run), into.folder(run))
            into.write_failure(
                run, {"reason": reason, "expected": True, "diverged": True, "code": CODE_VERSION}
            )
            found.append(run)
    return tuple(found)


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in reversed(KEPT):  # the record last: a run without it is not finished
        if (source / name).is_file():
            write_atomically(target / name, (source / name).read_bytes())
