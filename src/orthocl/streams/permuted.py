"""Permuted streams: the pixels of every image in one fixed random order per task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orthocl.streams.base import Stream, Task, check_numbers, check_tasks
from orthocl.streams.seeds import generator
from orthocl.streams.views import LabelledData, PixelMap, View, stream_fingerprint


@dataclass(frozen=True, eq=False, kw_only=True)
class PermutedStream(Stream):
    """Made by `permuted`."""

    train: View
    test: View
    tasks: int
    seed: int

    def __len__(self) -> int:
        return self.tasks

    def task(self, number: int) -> Task:
        """The task at position `number`; the first is not permuted."""
        self.check_number(number)
        if number == 1:
            return Task(1, "original", self.train, self.test, outputs=self.heads["main"])
        order = generator("permuted", self.seed, number).permutation(self.train.stored.shape[-1])
        pixel_map = PixelMap(order, np.empty(0, dtype=np.int64))
        train, test = self.train.mapped(pixel_map), self.test.mapped(pixel_map)
        return Task(number, f"permutation {number}", train, test, outputs=self.heads["main"])


def permuted(
    data: LabelledData,
    *,
    tasks: int = 15,
    seed: int = 0,
    train_size: int | None = None,
    test_size: int | None = None,
) -> PermutedStream:
    """A stream in which each task after the first permutes the pixels of all images in its own fixed order.

    Args:
        data: any image data; the channels of a pixel stay together.
        tasks: number of tasks.
        seed: seed of the data, independent of the run seed.
        train_size: training samples per task (the same in all), balanced over classes; all by default.
        test_size: likewise for test samples.

    >>> from orthocl.streams.datasets import mnist_mini
    >>> stream = permuted(mnist_mini(), tasks=3)
    >>> stream.task(3).train.inputs(slice(0, 32)).shape
    torch.Size([32, 1, 32, 32])
    """
    check_numbers(tasks=tasks, seed=seed, train_size=train_size, test_size=test_size)
    check_tasks(tasks)
    settings = {
        "kind": "permuted",
        **data.settings,
        "tasks": tasks,
        "seed": seed,
        "train_size": train_size,
        "test_size": test_size,
    }
    return PermutedStream(
        name=f"permuted-{data.name}",
        input_shape=data.shape,
        heads={"main": len(data.classes)},
        settings=settings,
        fingerprint=stream_fingerprint(data.fingerprint, settings),
        train=data.split("train").subset(train_size, "train", seed),
        test=data.split("test").subset(test_size, "test", seed),
        tasks=tasks,
        seed=seed,
    )
