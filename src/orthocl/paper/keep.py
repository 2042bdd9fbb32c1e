"""Keep records: copy the results of finished runs into a small store that goes into version control.

A store of kept records has runs/<id>/record.json and runs/<id>/settings.json and nothing else: no weights, no progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orthocl.errors import StoreError
from orthocl.lab import RunSettings, Store
from orthocl.paper.evidence import RecordIndex
from orthocl.storage import write_atomically

KEPT = ("record.json", "settings.json")


@dataclass(frozen=True)
class Kept:
    """What a copy did: ids of the records that are new, and of those that were there."""

    new: tuple[str, ...]
    known: tuple[str, ...]


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
        new.append(record.id)
    return Kept(tuple(new), tuple(known))


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in reversed(KEPT):  # the record last: a run without it is not finished
        if (source / name).is_file():
            write_atomically(target / name, (source / name).read_bytes())
