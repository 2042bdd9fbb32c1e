"""Data sets: fetch, verify, read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from orthocl.errors import DataError, SettingsError, unknown_name
from orthocl.registry import Registry
from orthocl.streams.datasets.catalogue import ENTRIES, IMAGES
from orthocl.streams.datasets.features import FeatureData, find_features, read_features
from orthocl.streams.datasets.fetch import fetch
from orthocl.streams.datasets.locate import data_roots, find_verified
from orthocl.streams.datasets.mini import mnist_mini
from orthocl.streams.datasets.status import DataStatus, status
from orthocl.streams.images import ImageData
from orthocl.streams.views import LabelledData

__all__ = [
    "DATASETS",
    "ENTRIES",
    "DataStatus",
    "FeatureData",
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
        data_root: folder with the data sets; by default $ORTHOCL_DATA, or the user's cache folder.

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
        data_root: folder with the data sets; by default $ORTHOCL_DATA, or the user's cache folder.
        layer: "fc6" or "pool5"; by default whichever exists, fc6 first.
    """
    return read_features(find_features(data_root, layer))


Loader = Callable[..., LabelledData]


def _dataset(value: Any, spec: str) -> Loader:
    if isinstance(value, ImageData | FeatureData):
        return lambda data_root=None: value
    if not callable(value):
        raise SettingsError(
            f"{spec} is not a function that returns a data set, such as an orthocl.streams.ImageData"
        )

    def loaded(data_root: str | Path | None = None) -> LabelledData:
        data = value()
        missing = [
            name
            for name in ("name", "classes", "shape", "settings", "fingerprint", "split")
            if not hasattr(data, name)
        ]
        if missing:
            raise SettingsError(
                f"data set {spec} is a {type(data).__name__} without {missing[0]!r}: return an "
                "orthocl.streams.ImageData"
            )
        found: LabelledData = data
        return found

    return loaded


DATASETS: Registry[Loader] = Registry(
    "dataset",
    {
        **{name: partial(load, name) for name in ("mnist-mini", *(entry.name for entry in IMAGES))},
        "cub200": load_cub200,
    },
    _dataset,
)
"""Data set name, module or file -> function of the data root that reads it."""
