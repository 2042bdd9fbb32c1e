"""Data sets: fetch, verify, read."""

from __future__ import annotations

from pathlib import Path

from orthocl.errors import DataError, unknown_name
from orthocl.streams.datasets.catalogue import ENTRIES, IMAGES
from orthocl.streams.datasets.features import FeatureData, find_features, read_features
from orthocl.streams.datasets.fetch import fetch
from orthocl.streams.datasets.locate import data_roots, find_verified
from orthocl.streams.datasets.mini import mnist_mini
from orthocl.streams.datasets.status import Status, status
from orthocl.streams.images import ImageData

__all__ = [
    "ENTRIES",
    "FeatureData",
    "Status",
    "data_roots",
    "fetch",
    "load",
    "load_cub200",
    "mnist_mini",
    "status",
]


def load(name: str, data_root: str | Path | None = None) -> ImageData:
    """The complete image data set of this name, verified.

    Args:
        name: "mnist-mini", "mnist", "fashion-mnist", "cifar10" or "cifar100".
        data_root: folder of the data sets; by default $ORTHOCL_DATA, else the user's cache folder.

    Raises:
        DataError: when it is missing (which files are expected where, and how to get them) or damaged.
    """
    if name == "mnist-mini":
        return mnist_mini()
    entry = next((each for each in IMAGES if each.name == name), None)
    if entry is None:
        raise unknown_name("image data set", name, ["mnist-mini", *(each.name for each in IMAGES)])
    place, files = find_verified(entry, data_root, IMAGES)
    if place.edition.read is None:
        raise DataError(f"{name} in {place.folder} cannot be read as images")
    return place.edition.read(files)


def load_cub200(data_root: str | Path | None = None, layer: str | None = None) -> FeatureData:
    """The prepared features of CUB-200.

    Args:
        data_root: folder of the data sets; by default $ORTHOCL_DATA, else the user's cache folder.
        layer: "fc6" or "pool5"; by default what there is, fc6 first.
    """
    return read_features(find_features(data_root, layer))
