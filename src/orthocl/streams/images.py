"""Image data sets, and views of them: shared uint8 pixels, a map of the pixels, and a normalisation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from orthocl.errors import DataError, SettingsError
from orthocl.streams.base import Split
from orthocl.streams.seeds import generator

Part = Literal["train", "test"]


@dataclass(frozen=True, eq=False)
class PixelMap:
    """Where each pixel of the output comes from: `out[j] = in[source[j]]`, or 0 where `outside[j]`.

    A permutation is one; so are a rotation with nearest-neighbour sampling and padding.
    """

    source: np.ndarray[tuple[int], np.dtype[np.int64]]
    outside: np.ndarray[tuple[int], np.dtype[np.int64]]

    def __call__(self, pixels: Tensor) -> Tensor:
        """Map the last dimension. NumPy's `take` is several times faster than torch's indexing on uint8."""
        mapped = pixels.numpy().take(self.source, axis=-1)
        if self.outside.size:
            mapped[..., self.outside] = 0
        return torch.from_numpy(mapped)


@dataclass(frozen=True, eq=False)
class ImageData:
    """A labelled image data set in memory.

    Args:
        name: data set name, such as "mnist".
        train_images: uint8, (samples, channels, height, width).
        train_labels: integers 0 .. classes - 1.
        test_images: as `train_images`.
        test_labels: as `train_labels`.
        classes: class names, in the order of the labels.
        mean: per channel, of pixels scaled to [0, 1] and padded.
        std: likewise.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            _check_images(self.name, part, self.images(part), self.labels(part), len(self.classes))
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise DataError(
                f"{self.name}: training images have shape {tuple(self.train_images.shape[1:])}, test images "
                f"{tuple(self.test_images.shape[1:])}: both must agree"
            )
        channels = self.train_images.shape[1]
        if len(self.mean) != channels or len(self.std) != channels or min(self.std) <= 0:
            raise DataError(
                f"{self.name}: {channels} channels need as many means and positive standard deviations, "
                f"got mean {self.mean} and std {self.std}"
            )

    def images(self, part: Part) -> Tensor:
        """The images of one part."""
        return self.train_images if part == "train" else self.test_images

    def labels(self, part: Part) -> Tensor:
        """The labels of one part."""
        return self.train_labels if part == "train" else self.test_labels

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width

    @cached_property
    def fingerprint(self) -> str:
        """Hash of images, labels and normalisation."""
        digest = hashlib.sha256(json.dumps([self.shape, self.mean, self.std]).encode())
        for tensor in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def split(self, part: Part, classes: tuple[int, ...] | None = None) -> ImageSplit:
        """The samples of one part, or of some of its classes, which are then labelled 0, 1, ... in order."""
        images, labels = self.images(part), self.labels(part)
        pixels = images.flatten(2)
        if classes is None:
            return ImageSplit(pixels, labels, self)
        relabel = torch.full((len(self.classes),), -1)
        relabel[list(classes)] = torch.arange(len(classes))
        rows = (relabel[labels] >= 0).nonzero().flatten()
        return ImageSplit(pixels, relabel[labels[rows]], self, rows)


class ImageSplit(Split):
    """A view of image data: which rows, under which pixel map, normalised when read."""

    def __init__(
        self,
        pixels: Tensor,
        targets: Tensor,
        data: ImageData,
        rows: Tensor | None = None,
        pixel_map: PixelMap | None = None,
    ):
        self.pixels = pixels
        self.targets = targets
        self.data = data
        self.rows = rows
        self.pixel_map = pixel_map
        self._mean = torch.tensor(data.mean).view(-1, 1)
        self._std = torch.tensor(data.std).view(-1, 1)

    def inputs(self, index: Tensor | slice | None = None) -> Tensor:
        """Normalised float images (samples, channels, height, width)."""
        pixels = self._pixels(index)
        if self.pixel_map is not None:
            pixels = self.pixel_map(pixels)
        scaled = pixels.to(torch.float32).div_(255).sub_(self._mean).div_(self._std)
        return scaled.view(-1, *self.data.shape)

    def _pixels(self, index: Tensor | slice | None) -> Tensor:
        rows = self.rows
        if index is None:
            return self.pixels if rows is None else self.pixels.index_select(0, rows)
        if rows is not None:
            return self.pixels.index_select(0, rows[index])
        # index_select is eight times faster than indexing on a batch of 32, but takes positions from 0 only.
        if isinstance(index, Tensor) and index.dtype == torch.int64 and bool((index >= 0).all()):
            return self.pixels.index_select(0, index)
        return self.pixels[index]

    def mapped(self, pixel_map: PixelMap | None) -> ImageSplit:
        """The same samples under another pixel map."""
        return ImageSplit(self.pixels, self.targets, self.data, self.rows, pixel_map)

    def subset(self, size: int | None, component: str, seed: int) -> ImageSplit:
        """A random `size` samples, as balanced over the classes as they allow; all of them when None."""
        if size is None:
            return self
        chosen = choose_balanced(self.targets, size, component, seed)
        rows = chosen if self.rows is None else self.rows[chosen]
        return ImageSplit(self.pixels, self.targets[chosen], self.data, rows, self.pixel_map)


def padded(data: ImageData, pixels: int) -> ImageData:
    """The data with a black border of `pixels` on each side, added once, in uint8."""
    border = (pixels, pixels, pixels, pixels)
    return replace(
        data,
        train_images=torch.nn.functional.pad(data.train_images, border),
        test_images=torch.nn.functional.pad(data.test_images, border),
    )


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


def _check_images(name: str, part: str, images: Tensor, labels: Tensor, classes: int) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise DataError(
            f"{name}, {part}: expected uint8 images (samples, channels, height, width), got "
            f"{images.dtype} of shape {tuple(images.shape)}"
        )
    if not len(images) or len(images) != len(labels) or labels.ndim != 1:
        raise DataError(f"{name}, {part}: {len(images)} images with labels of shape {tuple(labels.shape)}")
    if labels.dtype != torch.int64 or int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise DataError(
            f"{name}, {part}: expected int64 labels from 0 to {classes - 1}, got {labels.dtype} from "
            f"{int(labels.min())} to {int(labels.max())}"
        )
