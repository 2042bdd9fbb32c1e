"""Where each data set is, and whether it is intact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orthocl.errors import DataError
from orthocl.formatting import size_text
from orthocl.streams.datasets.catalogue import CUB200, ENTRIES, IMAGES
from orthocl.streams.datasets.cub200 import find_folder, read_index
from orthocl.streams.datasets.features import find_features, read_features
from orthocl.streams.datasets.locate import contents, find, size_on_disk
from orthocl.streams.datasets.pretrained import PRETRAINED
from orthocl.streams.datasets.schema import Entry
from orthocl.streams.datasets.weights import find_weights, read_weights


@dataclass(frozen=True)
class DataStatus:
    """The state of one data set.

    Args:
        name: the data set.
        state: "verified", "unverified" (complete, no checksum published), "damaged" or "missing".
        where: folder or file, if there is one.
        size: bytes on disk.
        detail: what is wrong, or what it is.
    """

    name: str
    state: str
    where: Path | None
    size: int
    detail: str


def status(data_root: str | Path | None = None) -> list[DataStatus]:
    """The state of every data set that is there or can be fetched; verifying reads all files."""
    rows = [DataStatus("mnist-mini", "verified", None, 0, "comes with the package")]
    rows += [_files(entry, data_root) for entry in IMAGES]
    rows.append(_other(CUB200.name, lambda: find_folder(data_root), _cub_detail))
    rows.append(
        _other("alexnet", lambda: find_weights(data_root), lambda path: f"gives {read_weights(path).layer}")
    )
    found = [(entry, _files(entry, data_root)) for entry in PRETRAINED]
    rows += [row for entry, row in found if entry.sources or row.state != "missing"]
    rows.append(_other("cub200 features", lambda: find_features(data_root), _feature_detail))
    return rows


def _files(entry: Entry, data_root: str | Path | None) -> DataStatus:
    try:
        place = find(entry, data_root)
    except DataError as error:
        held = [line for line in str(error).splitlines()[1:] if " holds " in line]
        size = sum(file.size for file in entry.editions[0].files)
        how = f"orthocl data fetch {entry.name}" + (f" ({size_text(size)} on disk)" if size else "")
        return DataStatus(entry.name, "missing", None, 0, " ".join(held) or how)
    size = size_on_disk(place)
    try:
        contents(place, IMAGES)
    except DataError as error:
        return DataStatus(entry.name, "damaged", place.folder, size, str(error))
    state = "verified" if place.edition.verifiable else "unverified"
    return DataStatus(entry.name, state, place.folder, size, f"{len(place.edition.files)} files")


def _other(name: str, locate: Callable[[], Path], describe: Callable[[Path], str]) -> DataStatus:
    try:
        path = locate()
    except DataError as error:
        command = f"orthocl data fetch {name}" if name in ENTRIES else "orthocl data prepare cub200"
        return DataStatus(name, "missing", None, 0, command if str(error) else "")
    size = path.stat().st_size if path.is_file() else sum(each.stat().st_size for each in path.rglob("*.*"))
    try:
        detail = describe(path)
    except DataError as error:
        return DataStatus(name, "damaged", path, size, str(error))
    return DataStatus(name, "verified" if path.suffix == ".pth" else "unverified", path, size, detail)


def _cub_detail(folder: Path) -> str:
    index = read_index(folder)
    absent = sum(not (index.folder / path).is_file() for path in index.paths)
    if absent:
        raise DataError(f"{absent} of {len(index.paths)} images listed in images.txt are missing")
    return f"{len(index.paths)} images, lists consistent"


def _feature_detail(path: Path) -> str:
    data = read_features(path)
    dtype = str(data.features.dtype).removeprefix("torch.")
    return f"{len(data.features)} x {data.features.shape[1]} {dtype}, {data.origin['layer']}"
