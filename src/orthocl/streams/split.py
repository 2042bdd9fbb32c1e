"""Split streams: each task holds some of the classes, with its own head."""

from __future__ import annotations

from dataclasses import dataclass

from orthocl.errors import SettingsError, warn
from orthocl.streams.base import Stream, Task, check_numbers
from orthocl.streams.seeds import generator
from orthocl.streams.views import LabelledData, stream_fingerprint


@dataclass(frozen=True, eq=False, kw_only=True)
class SplitStream(Stream):
    """Made by `split`."""

    data: LabelledData
    groups: tuple[tuple[int, ...], ...]
    seed: int
    train_size: int | None
    test_size: int | None

    def __len__(self) -> int:
        return len(self.groups)

    def task(self, number: int) -> Task:
        """The task at position `number`."""
        self.check_number(number)
        group = self.groups[number - 1]
        return Task(
            number,
            "classes " + ", ".join(self.data.classes[label] for label in group),
            self.data.split("train", group).subset(self.train_size, f"train {number}", self.seed),
            self.data.split("test", group).subset(self.test_size, f"test {number}", self.seed),
            head=list(self.heads)[number - 1],
            outputs=len(group),
        )


def split(
    data: LabelledData,
    *,
    tasks: int | None = None,
    classes_per_task: int = 2,
    shuffle_classes: bool = False,
    seed: int = 0,
    train_size: int | None = None,
    test_size: int | None = None,
) -> SplitStream:
    """A stream in which each task holds some of the classes, relabelled from 0, with its own head.

    Args:
        data: any image data.
        tasks: number of tasks; as many as the classes allow by default.
        classes_per_task: classes in each task.
        shuffle_classes: assign the classes in a random order (by `seed`) instead of in label order.
        seed: seed of the data, independent of the run seed.
        train_size: training samples per task, balanced over classes; all by default.
        test_size: likewise for test samples.

    >>> from orthocl.streams.datasets import mnist_mini
    >>> stream = split(mnist_mini())
    >>> stream.task(2).name, dict(stream.heads)["task-2"]
    ('classes 2, 3', 2)
    """
    check_numbers(
        tasks=tasks, classes_per_task=classes_per_task, seed=seed, train_size=train_size, test_size=test_size
    )
    if not 1 <= classes_per_task <= len(data.classes):
        raise SettingsError(
            f"{data.name} has {len(data.classes)} classes: classes_per_task must be from 1 to "
            f"{len(data.classes)}, got {classes_per_task}"
        )
    most, left = divmod(len(data.classes), classes_per_task)
    if tasks is None and left:
        names = ", ".join(data.classes[-left:])
        warn(
            f"{len(data.classes)} classes of {data.name} do not divide into tasks of {classes_per_task}: {left} are "
            "left out" + (f" ({names})" if not shuffle_classes and left < 5 else ""),
        )
    tasks = most if tasks is None else tasks
    if not 1 <= tasks <= most:
        raise SettingsError(
            f"{len(data.classes)} classes of {data.name} make at most {most} tasks of {classes_per_task}: "
            f"tasks must be from 1 to {most}, got {tasks}"
        )
    order = list(range(len(data.classes)))
    if shuffle_classes:
        order = [int(label) for label in generator("split", seed).permutation(len(data.classes))]
    groups = tuple(
        tuple(order[first : first + classes_per_task])
        for first in range(0, tasks * classes_per_task, classes_per_task)
    )
    settings = {
        "kind": "split",
        **data.settings,
        "classes": [list(group) for group in groups],
        "seed": seed,
        "train_size": train_size,
        "test_size": test_size,
    }
    return SplitStream(
        name=f"split-{data.name}",
        input_shape=data.shape,
        heads={f"task-{number}": classes_per_task for number in range(1, tasks + 1)},
        settings=settings,
        fingerprint=stream_fingerprint(data.fingerprint, settings),
        data=data,
        groups=groups,
        seed=seed,
        train_size=train_size,
        test_size=test_size,
    )
