"""Image data sets in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from orthocl.errors import DataError
from orthocl.streams.views import PARTS, Normalisation, Part, View, class_rows


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
        for part in PARTS:
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

    @property
    def settings(self) -> Mapping[str, object]:
        """What determines the data, for the records."""
        return {"data": self.name}

    def split(self, part: Part, classes: tuple[int, ...] | None = None) -> View:
        """The samples of one part, or of some of its classes, which are then labelled 0, 1, ... in order."""
        labels, rows = self.labels(part), None
        if classes is not None:
            rows, labels = class_rows(labels, classes, len(self.classes))
        normalise = Normalisation(self.mean, self.std)
        return View(self.images(part).flatten(2), labels, self.shape, rows, normalise=normalise)


def padded(data: ImageData, pixels: int) -> ImageData:
    """The data with a black border of `pixels` on each side, added once, in uint8."""
    border = (pixels, pixels, pixels, pixels)
    return replace(
        data,
        train_images=torch.nn.functional.pad(data.train_images, border),
        test_images=torch.nn.functional.pad(data.test_images, border),
    )


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
