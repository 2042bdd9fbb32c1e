"""Fetch data sets: sources in order, checksums, atomic and resumable."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pooch

from orthocl.errors import DataError, unknown_name
from orthocl.streams.datasets.archives import extract_tree
from orthocl.streams.datasets.catalogue import CUB200, CUB_ARCHIVE, CUB_URL, ENTRIES
from orthocl.streams.datasets.cub200 import FOLDER, cub_expectation, find_folder, read_index
from orthocl.streams.datasets.download import download
from orthocl.streams.datasets.locate import data_roots, expectation, find_verified, read_verified
from orthocl.streams.datasets.schema import Edition, Entry, OnProgress, Source, no_progress
from orthocl.streams.datasets.sources import FoundArchive

STAGING = ".fetching"
CUB_MOST_BYTES, CUB_MOST_FILES = 3 << 30, 20_000


def fetch(name: str, data_root: str | Path | None = None, progress: OnProgress = no_progress) -> Path:
    """Make sure that a data set is there, complete and verified.

    Args:
        name: one of `ENTRIES`.
        data_root: where to look for it and put it.
        progress: called as it proceeds.

    Returns:
        The folder that holds it.

    Raises:
        DataError: when no source can deliver it: with the reason for each, and what to put where by hand.
    """
    if name not in ENTRIES:
        raise unknown_name("data set", name, ENTRIES)
    if name == CUB200.name:
        return _fetch_cub200(data_root, progress)
    return fetch_entry(ENTRIES[name], data_root, progress)


def fetch_entry(
    entry: Entry, data_root: str | Path | None = None, progress: OnProgress = no_progress
) -> Path:
    """Fetch the files of one entry; existing verified files are left alone."""
    try:
        return find_verified(entry, data_root)[0].folder
    except DataError:
        pass  # missing or damaged: fetch it
    root = writable_root(data_root)
    reasons = []
    for edition, source in _sources(entry, data_root):
        staging = root / STAGING / entry.name
        staging.mkdir(parents=True, exist_ok=True)
        try:
            source.deliver(edition, staging, progress)
            return _install(edition, staging, root / edition.folders[0])
        except (DataError, OSError) as error:
            reasons.append(
                f"  {error}" if str(error).startswith(source.label) else f"  {source.label}: {error}"
            )
        _remove_empty(staging)
    with contextlib.suppress(DataError):  # another process may have fetched it meanwhile
        return find_verified(entry, data_root)[0].folder
    tried = "\n".join(reasons) or "  no source is known"
    expected = expectation(entry, data_root, fetched=True)
    raise DataError(f"{entry.name} could not be fetched. Tried:\n{tried}\n{expected}")


def writable_root(data_root: str | Path | None = None) -> Path:
    """The first data root that can be written to."""
    roots = data_roots(data_root)
    for root in roots:
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(root, os.W_OK):
            return root
    raise DataError(f"cannot write to {' or '.join(map(str, roots))}: choose another folder with --data-root")


def _sources(entry: Entry, data_root: str | Path | None) -> Iterator[tuple[Edition, Source]]:
    for edition in entry.editions:
        if edition.archive and edition.verifiable:
            for root in data_roots(data_root):
                for archive in sorted(root.glob(f"{edition.archive}.t*")):
                    yield edition, FoundArchive(archive, edition.folders[0])
    for number, source in entry.sources:
        yield entry.editions[number], source


def _install(edition: Edition, staging: Path, folder: Path) -> Path:
    wrong = []
    for file in edition.files:
        try:
            read_verified(staging / file.name, file)
        except DataError as error:
            (staging / file.name).unlink(missing_ok=True)
            wrong.append(error)
    if wrong:
        raise wrong[0]
    folder.mkdir(parents=True, exist_ok=True)
    for file in edition.files:
        os.replace(staging / file.name, folder / file.name)
    shutil.rmtree(staging, ignore_errors=True)
    _remove_empty(staging)
    return folder


def _remove_empty(staging: Path) -> None:
    for folder in (staging, staging.parent):
        with contextlib.suppress(OSError):  # something is kept there, to resume from
            folder.rmdir()


def _fetch_cub200(data_root: str | Path | None, progress: OnProgress) -> Path:
    try:
        folder = find_folder(data_root)
        read_index(folder)
        return folder
    except DataError:
        pass  # missing or damaged: fetch it
    root = writable_root(data_root)
    staging = root / STAGING / CUB200.name
    staging.mkdir(parents=True, exist_ok=True)
    try:
        archive = _cub_archive(staging, data_root, progress)
        unpacked = staging / FOLDER
        shutil.rmtree(unpacked, ignore_errors=True)
        extract_tree(
            archive, FOLDER, unpacked, most_bytes=CUB_MOST_BYTES, most_files=CUB_MOST_FILES, progress=progress
        )
        read_index(unpacked)
    except (DataError, OSError) as error:
        _remove_empty(staging)
        raise DataError(f"cub200 could not be fetched: {error}\n{cub_expectation(data_root)}") from error
    shutil.rmtree(root / FOLDER, ignore_errors=True)
    os.replace(unpacked, root / FOLDER)
    shutil.rmtree(staging, ignore_errors=True)
    return root / FOLDER


def _cub_archive(staging: Path, data_root: str | Path | None, progress: OnProgress) -> Path:
    for root in data_roots(data_root):
        given = root / CUB_ARCHIVE.name
        if given.is_file():
            algorithm, _, digest = CUB_ARCHIVE.checksum.partition(":")
            progress(f"verifying {given.name}", 0, None)
            if pooch.file_hash(str(given), alg=algorithm) != digest:
                raise DataError(f"{given} does not have the checksum {CUB_ARCHIVE.checksum}: copy it again")
            return given
    archive = staging / CUB_ARCHIVE.name
    download(CUB_URL, archive, checksum=CUB_ARCHIVE.checksum, limit=CUB_ARCHIVE.size, progress=progress)
    return archive
