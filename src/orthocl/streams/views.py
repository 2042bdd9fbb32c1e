"""Views of data in memory: which rows, with which pixel map, normalised when read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orthocl.errors import SettingsError
from orthocl.streams.base import Split
from orthocl.streams.seeds import generator

Part = Literal["train", "test"]
PARTS: tuple[Part, Part] = ("train", "test")


class LabelledData(Protocol):
    """What permuted, rotated and split streams need from a data set."""

    @property
    def name(self) -> str:
        """Name of the data set."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in the order of the labels."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""

    @property
    def settings(self) -> Mapping[str, object]:
        """What determines the data, for the records."""

    @property
    def fingerprint(self) -> str:
        """Hash of the data."""

    def split(self, part: Part, classes: tuple[int, ...] | None = None) -> View:
        """The samples of one part, or of some of its classes, which are then labelled 0, 1, ... in order."""


@dataclass(frozen=True, eq=False)
class PixelMap:
    """Where each pixel of the output comes from: `out[j] = in[source[j]]`, or 0 for j in `outside`.

    A permutation is one; so is a rotation with nearest-neighbour sampling.
    """

    source: NDArray[np.int64]
    outside: NDArray[np.int64]

    def __call__(self, pixels: Tensor) -> Tensor:
        """Map the last dimension. NumPy's `take` is several times faster than torch's indexing on uint8."""
        mapped = pixels.numpy().take(self.source, axis=-1)
        if self.outside.size:
            mapped[..., self.outside] = 0
        return torch.from_numpy(mapped)

    def filled_from(self, black: int) -> PixelMap:
        """The same map on images whose pixel `black` is always 0: one pass instead of two."""
        source = self.source.copy()
        source[self.outside] = black
        return PixelMap(source, self.outside[:0])


@dataclass(frozen=True, eq=False)
class Normalisation:
    """Scale bytes to [0, 1], then subtract `mean` and divide by `std`, per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, scaled: Tensor) -> Tensor:
        """Normalise floats (samples, channels, pixels) in place."""
        return (
            scaled.div_(255)
            .sub_(torch.tensor(self.mean).view(-1, 1))
            .div_(torch.tensor(self.std).view(-1, 1))
        )


class View(Split):
    """A view of stored samples. Many tasks share one store; only requested samples become floats.

    Args:
        stored: all samples, (samples, channels, pixels) or (samples, features), of any dtype.
        targets: of the samples in view.
        shape: of one sample as the network sees it.
        rows: the samples in view; all by default.
        pixel_map: applied to the last dimension of the stored samples.
        normalise: applied to the floats, in place.
    """

    def __init__(
        self,
        stored: Tensor,
        targets: Tensor,
        shape: tuple[int, ...],
        rows: Tensor | None = None,
        pixel_map: Callable[[Tensor], Tensor] | None = None,
        normalise: Callable[[Tensor], Tensor] | None = None,
    ):
        self.stored = stored
        self.targets = targets
        self.shape = shape
        self.rows = rows
        self.pixel_map = pixel_map
        self.normalise = normalise

    def inputs(self, index: Tensor | slice | None = None) -> Tensor:
        """Float samples, ready for the network."""
        chosen = self._stored(index)
        if self.pixel_map is not None:
            chosen = self.pixel_map(chosen)
        floats = chosen.to(torch.float32, copy=True)
        if self.normalise is not None:
            floats = self.normalise(floats)
        return floats.view(-1, *self.shape)

    def _stored(self, index: Tensor | slice | None) -> Tensor:
        if index is None:
            return self.stored if self.rows is None else self.stored.index_select(0, self.rows)
        if self.rows is not None:
            return self.stored.index_select(0, self.rows[index])
        # index_select is eight times faster than indexing on a batch of 32, but takes positions from 0 only.
        if isinstance(index, Tensor) and index.dtype == torch.int64 and bool((index >= 0).all()):
            return self.stored.index_select(0, index)
        return self.stored[index]

    def mapped(self, pixel_map: Callable[[Tensor], Tensor] | None) -> View:
        """The same samples under another pixel map."""
        return View(self.stored, self.targets, self.shape, self.rows, pixel_map, self.normalise)

    def subset(self, size: int | None, component: str, seed: int) -> View:
        """A random `size` samples, as balanced over the classes as they allow; all of them when None."""
        if size is None:
            return self
        chosen = choose_balanced(self.targets, size, component, seed)
        rows = chosen if self.rows is None else self.rows[chosen]
        return View(self.stored, self.targets[chosen], self.shape, rows, self.pixel_map, self.normalise)


def class_rows(labels: Tensor, classes: tuple[int, ...], total: int) -> tuple[Tensor, Tensor]:
    """Rows of the samples of some classes, and their labels counted 0, 1, ... in the order of `classes`."""
    relabel = torch.full((total,), -1)
    relabel[list(classes)] = torch.arange(len(classes))
    rows = (relabel[labels] >= 0).nonzero().flatten()
    return rows, relabel[labels[rows]]


def choose_balanced(targets: Tensor, size: int, component: str, seed: int) -> Tensor:
    """Positions of `size` random samples, as balanced over the classes as they allow, in file order."""
    if not 1 <= size <= len(targets):
        raise SettingsError(
            f"{component}: a task has {len(targets)} samples: the size of a subset must be from 1 to that, "
            f"got {size}"
        )
    # In a random order, rank each sample within its class; the `size` lowest ranks are the balanced subset.
    order = generator("subset", seed, component).permutation(len(targets))
    labels = targets.numpy()[order]
    by_class = np.argsort(labels, kind="stable")
    counts = np.bincount(labels)
    rank = np.empty(len(labels), dtype=np.int64)
    rank[by_class] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = order[np.argsort(rank, kind="stable")[:size]]
    return torch.from_numpy(np.sort(chosen))


def stream_fingerprint(data_fingerprint: str, settings: Mapping[str, object]) -> str:
    """Hash of the data and of the settings of a stream."""
    text = json.dumps({"data": data_fingerprint, "settings": dict(settings)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
