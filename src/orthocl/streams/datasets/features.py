"""Features of a frozen network: computed once, kept on disk, read as a data set."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orthocl.errors import DataError
from orthocl.streams.datasets.cub200 import CubIndex, hash_images, load_images
from orthocl.streams.datasets.locate import ENVIRONMENT, data_roots
from orthocl.streams.datasets.npz import read_npz
from orthocl.streams.datasets.schema import EMBEDDED, OnProgress, no_progress
from orthocl.streams.views import Part, View, class_rows

LAYERS = {"fc6": 4096, "pool5": 9216}
MOST_BYTES = 2 << 30


@dataclass(frozen=True, eq=False)
class FeatureData:
    """Features of labelled images, as a data set.

    Args:
        name: data set name.
        features: float16 or float32, (samples, features).
        labels: integers from 0.
        train: which samples are for training.
        classes: class names.
        origin: layer, weights and images they come from, for the records.
    """

    name: str
    features: Tensor
    labels: Tensor
    train: Tensor
    classes: tuple[str, ...]
    origin: Mapping[str, object] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """One dimension: the number of features."""
        return (self.features.shape[1],)

    @property
    def settings(self) -> Mapping[str, object]:
        """The data set and what its features come from."""
        return {"data": self.name, **self.origin}

    @cached_property
    def fingerprint(self) -> str:
        """Hash of features, labels and split."""
        digest = hashlib.sha256()
        for tensor in (self.features, self.labels, self.train):
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def split(self, part: Part, classes: tuple[int, ...] | None = None) -> View:
        """The samples of one part, or of some of its classes, which are then labelled 0, 1, ... in order."""
        rows = (self.train if part == "train" else ~self.train).nonzero().flatten()
        labels = self.labels[rows]
        if classes is not None:
            chosen, labels = class_rows(labels, classes, len(self.classes))
            rows = rows[chosen]
        return View(self.features, labels, self.shape, rows)


def find_features(data_root: str | Path | None = None, layer: str | None = None) -> Path:
    """A feature file of CUB-200 below the data roots: of fc6, the paper's choice, if there is one.

    Raises:
        DataError: when there is none; it says what to do.
    """
    roots = data_roots(data_root)
    layers = list(LAYERS) if layer is None else [layer]
    for wanted in layers:
        for root in roots:
            for folder in (root / "features", root):
                found = sorted(folder.glob(f"cub200-alexnet-{wanted}*.npz"))
                if found:
                    return found[0]
    raise DataError(
        f"no features of cub200 ({' or '.join(layers)}) in {' or '.join(map(str, roots))}.\n"
        f"Expected: {roots[0] / 'features'}/cub200-alexnet-LAYER-*.npz, or the file in the folder above, with the "
        "arrays features (11788, 4096 or 9216), labels (0 to 199) and train (bool).\n"
        "Create it with `orthocl data prepare cub200` (after `orthocl data fetch cub200` and `orthocl data fetch "
        f"alexnet`). Another folder: --data-root FOLDER or ${ENVIRONMENT}. Without it, {EMBEDDED}."
    )


def read_features(path: Path) -> FeatureData:
    """Read and check a feature file.

    Raises:
        DataError: when it is damaged, or its arrays do not fit together.
    """
    arrays = read_npz(path, most_bytes=MOST_BYTES)
    missing = [name for name in ("features", "labels", "train") if name not in arrays]
    if missing:
        raise DataError(
            f"{path}: no array {', '.join(missing)}; a feature file holds features, labels and train"
        )
    features, labels, train = arrays["features"], arrays["labels"], arrays["train"]
    if features.dtype not in (np.float16, np.float32) or features.ndim != 2 or not features.size:
        raise DataError(
            f"{path}: features must be float16 or float32 (samples, features), got {_form(features)}"
        )
    if labels.dtype.kind not in "iu" or labels.shape != features.shape[:1]:
        raise DataError(f"{path}: labels must be {len(features)} integers, got {_form(labels)}")
    if train.dtype != np.bool_ or train.shape != features.shape[:1] or train.all() or not train.any():
        raise DataError(
            f"{path}: train must be {len(features)} booleans, some true and some false, got {_form(train)}"
        )
    if labels.min() < 0 or labels.max() > 999:
        raise DataError(f"{path}: labels must be from 0, got {labels.min()} to {labels.max()}")
    tensor = torch.from_numpy(features)
    if not all(bool(rows.isfinite().all()) for rows in tensor.split(1024)):  # its temporaries are large
        raise DataError(f"{path}: the features hold NaN or infinite values: prepare them again")
    origin = _origin(path, arrays.get("meta"), features.shape[1])
    names = origin.pop("classes", None)
    count = int(labels.max()) + 1
    if not isinstance(names, list) or len(names) < count:
        names = [f"{number:03}" for number in range(1, count + 1)]
    long = torch.from_numpy(labels.astype(np.int64))
    return FeatureData("cub200", tensor, long, torch.from_numpy(train), tuple(map(str, names)), origin)


def feature_path(root: Path, layer: str, images: str, weights: str, dtype: str) -> Path:
    """Where features are kept: the name gives the layer, the dtype and the hash of images and weights."""
    key = hashlib.sha256(f"{images}/{weights}".encode()).hexdigest()[:16]
    return root / "features" / f"cub200-alexnet-{layer}-{dtype}-{key}.npz"


def extract_features(
    index: CubIndex,
    network: Callable[[Tensor], Tensor],
    root: Path,
    *,
    layer: str,
    weights: str,
    dtype: str = "float16",
    batch_size: int = 32,
    progress: OnProgress = no_progress,
) -> Path:
    """Run all images through a frozen network and keep the features; an interrupted run resumes where it left off.

    Args:
        index: the images.
        network: images (batch, 3, 224, 224) -> features (batch, size).
        root: data root; the file goes to its folder "features".
        layer: what `network` computes: "fc6" or "pool5".
        weights: hash of its weights.
        dtype: "float16" or "float32".
        batch_size: images at a time.
        progress: called as it proceeds.

    Returns:
        The path of the feature file.
    """
    images = hash_images(index, progress)
    path = feature_path(root, layer, images, weights, dtype)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (len(index.paths), LAYERS[layer])
    journal = _Journal(path.with_suffix(".npy.partial"), path.with_suffix(".json.partial"), shape, dtype)
    features, done = journal.open()
    for first in range(done, len(index.paths), batch_size):
        last = min(first + batch_size, len(index.paths))
        with torch.no_grad():
            batch = network(load_images([index.folder / name for name in index.paths[first:last]]))
        features[first:last] = batch.numpy()
        journal.note(features, last)
        progress(f"{layer} features", last, len(index.paths))
    meta = {"layer": layer, "weights": weights, "images": images, "classes": list(index.classes)}
    partial = path.with_suffix(".npz.partial")
    with partial.open("wb") as stream:
        np.savez(
            stream,
            features=features,
            labels=np.array(index.labels, dtype=np.int16),
            train=np.array(index.train),
            meta=np.array(json.dumps(meta)),
        )
    os.replace(partial, path)
    journal.remove()
    return path


@dataclass(frozen=True)
class _Journal:
    """Features in progress: an array on disk, and how many of its rows are done."""

    array: Path
    note_path: Path
    shape: tuple[int, int]
    dtype: str

    def open(self) -> tuple[NDArray[Any], int]:
        try:
            done = int(json.loads(self.note_path.read_text())["rows"])
            features = np.load(self.array, mmap_mode="r+", allow_pickle=False)
            if features.shape == self.shape and features.dtype == self.dtype and 0 <= done <= self.shape[0]:
                return features, done
        except (OSError, ValueError, KeyError, TypeError):
            pass  # nothing to resume from: start over
        return np.lib.format.open_memmap(self.array, "w+", np.dtype(self.dtype), self.shape), 0

    def note(self, features: NDArray[Any], rows: int) -> None:
        if isinstance(features, np.memmap):
            features.flush()
        partial = self.note_path.with_suffix(".new")
        partial.write_text(json.dumps({"rows": rows}))
        os.replace(partial, self.note_path)

    def remove(self) -> None:
        self.note_path.unlink(missing_ok=True)
        self.array.unlink(missing_ok=True)


def _origin(path: Path, meta: NDArray[Any] | None, size: int) -> dict[str, object]:
    layer = next((name for name, outputs in LAYERS.items() if outputs == size), f"{size} features")
    origin: dict[str, object] = {"layer": layer}
    if meta is None:
        return origin
    try:
        loaded = json.loads(str(meta))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: its meta text is damaged: {error}") from None
    if not isinstance(loaded, dict):
        raise DataError(f"{path}: its meta text is not a JSON object")
    return {
        **origin,
        **{key: loaded[key] for key in ("layer", "weights", "images", "classes") if key in loaded},
    }


def _form(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"
