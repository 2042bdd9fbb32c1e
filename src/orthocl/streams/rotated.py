"""Rotated streams: each task turns every image by its own angle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from orthocl.errors import SettingsError, shortened, unknown_name
from orthocl.streams.base import Stream, Task, check_numbers, check_tasks
from orthocl.streams.views import LabelledData, PixelMap, View, stream_fingerprint


@dataclass(frozen=True, eq=False, kw_only=True)
class RotatedStream(Stream):
    """Made by `rotated`."""

    train: View
    test: View
    angles: tuple[float, ...]
    resample: str
    black_corner: bool

    def __len__(self) -> int:
        return len(self.angles)

    def task(self, number: int) -> Task:
        """The task at position `number`."""
        self.check_number(number)
        angle = self.angles[number - 1]
        rotation = ROTATIONS[self.resample]
        pixel_map = rotation(self.input_shape[1], self.input_shape[2], angle) if angle else None
        if isinstance(pixel_map, PixelMap) and self.black_corner:
            pixel_map = pixel_map.filled_from(0)
        train, test = self.train.mapped(pixel_map), self.test.mapped(pixel_map)
        return Task(number, f"rotated by {angle:g} degrees", train, test, outputs=self.heads["main"])


def rotated(
    data: LabelledData,
    *,
    tasks: int = 15,
    step: float = 5.0,
    angles: Sequence[float] | None = None,
    resample: str = "nearest",
    seed: int = 0,
    train_size: int | None = None,
    test_size: int | None = None,
) -> RotatedStream:
    """A stream in which each task turns all images counter-clockwise by its own angle.

    Args:
        data: any image data.
        tasks: number of tasks.
        step: degrees from one task to the next.
        angles: the angles themselves; `tasks` and `step` are then not used.
        resample: "nearest" (the protocol's) or "bilinear", on the bytes of the images in both cases.
        seed: seed of the data: here only for the subsets.
        train_size: training samples per task (the same in all), balanced over classes; all by default.
        test_size: likewise for test samples.

    >>> from orthocl.streams.datasets import mnist_mini
    >>> [task.name for task in rotated(mnist_mini(), tasks=3)]
    ['rotated by 0 degrees', 'rotated by 5 degrees', 'rotated by 10 degrees']
    """
    check_numbers(tasks=tasks, seed=seed, train_size=train_size, test_size=test_size)
    if len(data.shape) != 3:
        raise SettingsError(f"{data.name} holds samples of shape {data.shape}: only images can be turned")
    if resample not in ROTATIONS:
        raise unknown_name("resample", resample, ROTATIONS)
    if angles is None:
        check_tasks(tasks)
        angles = [step * number for number in range(tasks)]
    angles = _degrees(angles)
    settings = {
        "kind": "rotated",
        **data.settings,
        "angles": angles,
        "resample": resample,
        "seed": seed,
        "train_size": train_size,
        "test_size": test_size,
    }
    train = data.split("train").subset(train_size, "train", seed)
    test = data.split("test").subset(test_size, "test", seed)
    return RotatedStream(
        name=f"rotated-{data.name}",
        input_shape=data.shape,
        heads={"main": len(data.classes)},
        settings=settings,
        fingerprint=stream_fingerprint(data.fingerprint, settings),
        train=train,
        test=test,
        angles=tuple(angles),
        resample=resample,
        black_corner=not any(bool(view.stored[..., 0].any()) for view in (train, test)),
    )


def _degrees(angles: Sequence[float]) -> list[float]:
    with suppress(OverflowError):  # integers of hundreds of digits
        degrees = [float(angle) for angle in angles]
        if degrees and all(map(math.isfinite, degrees)):
            return degrees
    raise SettingsError(
        f"a rotated stream needs at least one finite angle in degrees, got {shortened(str(list(angles)))}"
    )


def nearest_rotation(height: int, width: int, angle: float) -> PixelMap:
    """Counter-clockwise rotation about the centre, nearest neighbour, exactly as Pillow does it on uint8.

    Pillow turns an image of pixel numbers (from 1, so that 0 marks what came from outside): the result is the map.
    """
    numbers = np.arange(1, height * width + 1, dtype=np.int32).reshape(height, width)
    turned = np.asarray(Image.fromarray(numbers).rotate(angle, Image.Resampling.NEAREST)).ravel()
    return PixelMap(np.maximum(turned - 1, 0).astype(np.int64), np.flatnonzero(turned == 0))


@dataclass(frozen=True, eq=False)
class BilinearRotation:
    """Counter-clockwise rotation about the centre, bilinear, exactly as Pillow does it on uint8.

    Each output pixel mixes four input pixels, by `right` along the row and by `below` down the column, and the
    result is cut to an integer. At the border the nearest row or column replaces the missing one.

    Args:
        corners: numbers of the four pixels, (4, pixels): upper left, upper right, lower left, lower right.
        right: weight of the right pixels.
        below: weight of the lower pixels.
        outside: output pixels that come from outside the image: 0.
    """

    corners: NDArray[np.int64]
    right: NDArray[np.float64]
    below: NDArray[np.float64]
    outside: NDArray[np.int64]

    def __call__(self, pixels: Tensor) -> Tensor:
        """Turn uint8 images, (samples, channels, pixels); a few at a time, because the mixing is in float64."""
        given = pixels.numpy()
        turned = np.empty_like(given)
        for first in range(0, len(given), 1024):
            piece = slice(first, first + 1024)
            corners = (given[piece].take(corner, axis=-1).astype(np.float64) for corner in self.corners)
            upper_left, upper_right, lower_left, lower_right = corners
            upper = upper_left + (upper_right - upper_left) * self.right
            lower = lower_left + (lower_right - lower_left) * self.right
            turned[piece] = upper + (lower - upper) * self.below
        turned[..., self.outside] = 0
        return torch.from_numpy(turned)


def bilinear_rotation(height: int, width: int, angle: float) -> BilinearRotation:
    """The bilinear rotation of images of this size by `angle` degrees."""
    radians = -np.deg2rad(angle % 360.0)
    # Rounded as Pillow does, so that its coordinates, and hence its pixels, are matched exactly.
    cos, sin = round(float(np.cos(radians)), 15), round(float(np.sin(radians)), 15)
    centre_x, centre_y = width / 2, height / 2
    offset_x = cos * -centre_x + sin * -centre_y + centre_x
    offset_y = -sin * -centre_x + cos * -centre_y + centre_y
    y, x = (grid.ravel() + 0.5 for grid in np.mgrid[0:height, 0:width])
    from_x = cos * x + sin * y + offset_x
    from_y = -sin * x + cos * y + offset_y
    outside = (from_x < 0) | (from_x >= width) | (from_y < 0) | (from_y >= height)
    left, top = np.floor(from_x - 0.5), np.floor(from_y - 0.5)
    columns = [np.clip(left + shift, 0, width - 1).astype(np.int64) for shift in (0, 1)]
    rows = [np.clip(top + shift, 0, height - 1).astype(np.int64) for shift in (0, 1)]
    corners = np.stack([row * width + column for row in rows for column in columns])
    return BilinearRotation(corners, from_x - 0.5 - left, from_y - 0.5 - top, np.flatnonzero(outside))


ROTATIONS: dict[str, Callable[[int, int, float], Callable[[Tensor], Tensor]]] = {
    "nearest": nearest_rotation,
    "bilinear": bilinear_rotation,
}
