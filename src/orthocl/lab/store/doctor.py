"""What is wrong with a store, file by file, and moving it out of the way.

Nothing is deleted: damaged files go to `quarantine/<run>/` in the store. A run without its record is unfinished and
resumes from its checkpoint; one without its checkpoint starts over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from orthocl.errors import OrthoclError, StoreError
from orthocl.lab.store.run_lock import alive_claim
from orthocl.lab.store.store import Damage, Store
from orthocl.storage import parse_json, read_file, read_state

STATES = ("checkpoint.safetensors", "weights.safetensors")


def examine(store: Store) -> list[Damage]:
    """Read and verify every file of every run, except of those that are being executed right now."""
    found = list(_strangers(store))
    for run in store.ids():
        if alive_claim(store.folder(run)) is None:
            found += _examine_run(store, run)
    return found


def quarantine(store: Store, damages: Sequence[Damage]) -> list[Path]:
    """Move damaged files to the quarantine of the store, and return where they are now.

    Raises:
        StoreError: a file cannot be moved, or its run has been started in the meantime.
    """
    moved = []
    for damage in damages:
        if damage.run and alive_claim(store.folder(damage.run)) is not None:
            raise StoreError(f"run {damage.run} is being executed right now: stop it first")
        target = _free(store.directory / "quarantine" / (damage.run or "store") / damage.path.name)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(damage.path, target)
        except OSError as error:
            raise StoreError(f"cannot move {damage.path} to {target}: {error.strerror or error}") from error
        moved.append(target)
    return moved


def _strangers(store: Store) -> Iterator[Damage]:
    if not store.runs.exists():
        return
    for path in sorted(store.runs.iterdir()):
        if not path.is_dir():
            yield Damage("", path, "it is not the folder of a run")


def _examine_run(store: Store, run: str) -> list[Damage]:
    folder = store.folder(run)
    found = []

    def look(name: str, check: Callable[[Path], object]) -> bool:
        path = folder / name
        if not (path.exists() or path.is_symlink()):
            return False
        try:
            check(path)
        except FileNotFoundError:
            found.append(Damage(run, path, "it is a link to nothing"))
        except OrthoclError as error:
            found.append(Damage(run, path, str(error)))
        return True

    finished = look("record.json", lambda _: store.record(run))
    settings = look("settings.json", lambda _: (store.settings(run), store.first_start(run)))
    look("failure.json", lambda path: parse_json(read_file(path), path))
    for name in STATES:
        look(name, lambda path: read_state(path, owner=run))
    checkpoint = store.checkpoint(run)
    known = {damage.path for damage in found}
    if checkpoint.exists() and checkpoint not in known:
        if finished and folder / "record.json" not in known:
            found.append(
                Damage(run, checkpoint, "the run is finished: a process that woke up too late left it")
            )
        elif not settings or folder / "settings.json" in known:
            found.append(Damage(run, checkpoint, "it cannot be resumed without a good settings.json"))
    return found


def _free(path: Path) -> Path:
    """This path, or the first with a number that is free."""
    number, free = 1, path
    while free.exists() or free.is_symlink():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free
