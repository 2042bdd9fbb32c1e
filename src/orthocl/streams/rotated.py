"""Rotated streams: each task turns every image by its own angle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from orthocl.errors import SettingsError
from orthocl.streams.base import Stream, Task, check_tasks
from orthocl.streams.images import ImageData, ImageSplit, PixelMap, stream_fingerprint


@dataclass(frozen=True, eq=False, kw_only=True)
class RotatedStream(Stream):
    """Made by `rotated`."""

    train: ImageSplit
    test: ImageSplit
    angles: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.angles)

    def task(self, number: int) -> Task:
        """The task at position `number`."""
        self.check_number(number)
        angle = self.angles[number - 1]
        pixel_map = nearest_rotation(self.input_shape[1], self.input_shape[2], angle) if angle else None
        train, test = self.train.mapped(pixel_map), self.test.mapped(pixel_map)
        return Task(number, f"rotated by {angle:g} degrees", train, test, outputs=self.heads["main"])


def rotated(
    data: ImageData,
    *,
    tasks: int = 15,
    step: float = 5.0,
    angles: Sequence[float] | None = None,
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
        seed: seed of the data: here only of the subsets.
        train_size: training samples per task (the same in all), balanced over classes; all by default.
        test_size: likewise for test samples.

    >>> from orthocl.streams.datasets import mnist_mini
    >>> [task.name for task in rotated(mnist_mini(), tasks=3)]
    ['rotated by 0 degrees', 'rotated by 5 degrees', 'rotated by 10 degrees']
    """
    if angles is None:
        check_tasks(tasks)
        angles = [step * number for number in range(tasks)]
    if not angles or not all(np.isfinite(angles)):
        raise SettingsError(
            f"a rotated stream needs at least one finite angle in degrees, got {list(angles)}"
        )
    settings = {
        "kind": "rotated",
        "data": data.name,
        "angles": [float(angle) for angle in angles],
        "seed": seed,
        "train_size": train_size,
        "test_size": test_size,
    }
    return RotatedStream(
        name=f"rotated-{data.name}",
        input_shape=data.shape,
        heads={"main": len(data.classes)},
        settings=settings,
        fingerprint=stream_fingerprint(data.fingerprint, settings),
        train=data.split("train").subset(train_size, "train", seed),
        test=data.split("test").subset(test_size, "test", seed),
        angles=tuple(float(angle) for angle in angles),
    )


def nearest_rotation(height: int, width: int, angle: float) -> PixelMap:
    """Counter-clockwise rotation about the centre, nearest neighbour, exactly as Pillow does it on uint8.

    Pillow turns an image of pixel numbers (from 1, so that 0 marks what came from outside): that is the map.
    """
    numbers = np.arange(1, height * width + 1, dtype=np.int32).reshape(height, width)
    turned = np.asarray(Image.fromarray(numbers, mode="I").rotate(angle, Image.Resampling.NEAREST)).ravel()
    return PixelMap(np.maximum(turned - 1, 0).astype(np.int64), np.flatnonzero(turned == 0))
