"""Where data sets are: data roots, and finding, verifying and reading their files."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pooch

from orthocl.errors import DataError
from orthocl.streams.datasets.schema import DataFile, Edition, Entry

ENVIRONMENT = "ORTHOCL_DATA"


@dataclass(frozen=True)
class Place:
    """A complete (not yet verified) edition of a data set in a folder."""

    folder: Path
    edition: Edition


def data_roots(data_root: str | Path | None = None) -> list[Path]:
    """Folders to search for data, in order: the one given, or $ORTHOCL_DATA and the user's cache.

    >>> [root.name for root in data_roots("data")]
    ['data']
    """
    if data_root is not None:
        return [Path(data_root).expanduser()]
    from_environment = os.environ.get(ENVIRONMENT)
    cache = Path(pooch.os_cache("orthocl"))
    return [Path(from_environment).expanduser(), cache] if from_environment else [cache]


def find(entry: Entry, data_root: str | Path | None = None) -> Place:
    """The first complete edition of a data set below the data roots.

    Raises:
        DataError: when there is none; it says which files are expected where, and how to get them.
    """
    place = next(_complete(entry, data_root), None)
    if place is None:
        raise DataError(expectation(entry, data_root))
    return place


def find_verified(
    entry: Entry, data_root: str | Path | None = None, others: tuple[Entry, ...] = ()
) -> tuple[Place, dict[str, bytes]]:
    """The first complete edition whose files are the published ones, and their contents by file name.

    Args:
        entry: the data set.
        data_root: folder with the data sets.
        others: entries whose files may have been put there by mistake: the error then says so.

    Raises:
        DataError: when there is none: what is wrong with the first complete one, or what is missing.
    """
    first: DataError | None = None
    for place in _complete(entry, data_root):
        try:
            return place, contents(place, others)
        except DataError as error:
            first = first or error
    raise first or DataError(expectation(entry, data_root))


def expectation(entry: Entry, data_root: str | Path | None = None, *, fetched: bool = False) -> str:
    """What is missing of a data set, where it is expected, and how to get it.

    Args:
        entry: the data set.
        data_root: folder with the data sets.
        fetched: whether fetching has been tried already.
    """
    roots = data_roots(data_root)
    lines = [f"{entry.name} ({entry.title}) is not complete in {' or '.join(map(str, roots))}."]
    for place in _places(entry, data_root):
        found = [file.name for file in place.edition.files if _path(place, file)]
        if found:
            missing = [file.name for file in place.edition.files if file.name not in found]
            lines.append(f"{place.folder} holds {', '.join(found)} but not {', '.join(missing)}.")
    edition = entry.editions[0]
    suffix = " (or .gz)" if edition.gzipped else ""
    lines.append(f"Expected in {roots[0] / edition.folders[0]}:")
    lines += [
        f"  {file.name}{suffix}, {file.size} bytes, {file.checksum or 'no checksum published'}"
        for file in edition.files
    ]
    if edition.archive:
        lines.append(
            f"or {edition.archive}.tar.gz in {roots[0]}, which `orthocl data fetch {entry.name}` unpacks."
        )
    command = "Copy" if fetched else f"Get it with `orthocl data fetch {entry.name}`, or copy"
    lines.append(f"{command} it there from {entry.homepage}")
    lines.append(f"Another folder: --data-root FOLDER or ${ENVIRONMENT}. Without it, {entry.instead}.")
    return "\n".join(lines)


def contents(place: Place, others: tuple[Entry, ...] = ()) -> dict[str, bytes]:
    """The verified contents of all files of a place, by file name.

    Args:
        place: from `find`.
        others: entries whose files may have been put there by mistake: the error then says so.
    """
    return {file.name: read_verified(_existing(place, file), file, others) for file in place.edition.files}


def size_on_disk(place: Place) -> int:
    """Bytes that the files of a place take."""
    return sum(_existing(place, file).stat().st_size for file in place.edition.files)


def read_verified(path: Path, file: DataFile, others: tuple[Entry, ...] = ()) -> bytes:
    """The uncompressed content of a file, if it is the published one.

    Raises:
        DataError: when it is truncated, damaged, another file, or cannot be read.
    """
    content = read_limited(path, file.size)
    if len(content) != file.size:
        found = f"only {len(content)}" if len(content) < file.size else "more"
        raise DataError(
            f"{path}: {file.name} has {file.size} bytes, this file {found}: it is truncated, damaged or "
            "another version; delete it and fetch it again"
        )
    if not file.matches(content):
        twin = _twin(content, others)
        raise DataError(
            f"{path} is not the published {file.name} ({file.checksum}): "
            + (f"its content is {twin}" if twin else "it is damaged or another version")
            + "; delete it and fetch it again"
        )
    return content


def read_limited(path: Path, limit: int) -> bytes:
    """Content of a file, plain or .gz, at most one byte beyond `limit`, so that no file fills the memory."""
    if not path.is_file():
        raise DataError(f"{path} cannot be read: it is not a file")
    try:
        if path.suffix != ".gz":
            if path.stat().st_size > limit:
                return bytes(limit + 1)
            return path.read_bytes()
        with gzip.open(path) as stream:
            return stream.read(limit + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged ({error}): delete it and fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _twin(content: bytes, others: tuple[Entry, ...]) -> str | None:
    for entry in others:
        for edition in entry.editions:
            for file in edition.files:
                if file.size == len(content) and file.matches(content):
                    return f"{file.name} of {entry.name}"
    return None


def _places(entry: Entry, data_root: str | Path | None) -> list[Place]:
    return [
        Place(root / folder, edition)
        for root in data_roots(data_root)
        for edition in entry.editions
        for folder in edition.folders
    ]


def _complete(entry: Entry, data_root: str | Path | None) -> Iterator[Place]:
    for place in _places(entry, data_root):
        if all(_path(place, file) for file in place.edition.files):
            yield place


def _path(place: Place, file: DataFile) -> Path | None:
    names = (file.name, f"{file.name}.gz") if place.edition.gzipped else (file.name,)
    return next((place.folder / name for name in names if (place.folder / name).is_file()), None)


def _existing(place: Place, file: DataFile) -> Path:
    path = _path(place, file)
    if path is None:
        raise DataError(f"{place.folder / file.name} was there a moment ago and is gone now")
    return path
