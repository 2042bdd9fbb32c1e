"""Task and Stream: immutable data, in order.

Paper: section 3.1, tasks T_1, ..., T_T.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, overload

from torch import Tensor

from orthocl.checking import check_value
from orthocl.errors import SettingsError

TaskKind = Literal["classification", "regression"]


class Split(ABC):
    """Samples of one task, train or test: targets in memory, inputs produced on demand."""

    targets: Tensor

    @abstractmethod
    def inputs(self, index: Tensor | slice | None = None) -> Tensor:
        """Float inputs of the samples in `index` (all of them by default), ready for the network."""

    def __len__(self) -> int:
        return len(self.targets)

    def samples(self, index: Tensor | slice | None = None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the samples in `index`."""
        return self.inputs(index), self.targets if index is None else self.targets[index]


@dataclass(frozen=True)
class Task:
    """One task of a stream.

    Args:
        number: position in the stream, from 1.
        name: what tables call it, such as "rotated by 10 degrees".
        train: training samples.
        test: test samples.
        head: name of the output head; tasks that share a head share its name.
        outputs: size of that head; class labels are 0 .. outputs - 1.
        kind: "classification" (integer labels) or "regression" (float targets).
    """

    number: int
    name: str
    train: Split
    test: Split
    head: str = "main"
    outputs: int = 10
    kind: TaskKind = "classification"


@dataclass(frozen=True, eq=False, kw_only=True)
class Stream(ABC, Sequence[Task]):
    """An ordered sequence of tasks. Tasks are made on demand and hold views, not copies, of the data.

    Args:
        name: registry name, such as "rotated-mnist".
        input_shape: shape of one sample as the network sees it.
        heads: output head name -> number of outputs, in order of first use.
        settings: everything that determines the data, as JSON values: goes into every record.
        fingerprint: hash of the data and of `settings`; equal fingerprints mean equal tensors.
    """

    name: str
    input_shape: tuple[int, ...]
    heads: Mapping[str, int]
    settings: Mapping[str, object] = field(default_factory=dict)
    fingerprint: str = ""

    @abstractmethod
    def task(self, number: int) -> Task:
        """The task at position `number`, counted from 1."""

    def check_number(self, number: int) -> None:
        """Reject a task number that the stream does not have."""
        if not 1 <= number <= len(self):
            raise SettingsError(f"stream {self.name!r} has tasks 1 to {len(self)}, no task {number}")

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self.task(i + 1) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"stream {self.name!r} has {len(self)} tasks, no index {index}")
        return self.task(index % len(self) + 1)

    def __iter__(self) -> Iterator[Task]:
        return (self.task(number) for number in range(1, len(self) + 1))


def check_numbers(**values: int | None) -> None:
    """Reject settings of a stream that are no whole numbers; a number that has a default may be None."""
    for name, value in values.items():
        check_value(name, value, int if name in ("seed", "classes_per_task") else int | None)


def check_tasks(tasks: int) -> None:
    """Reject an impossible number of tasks."""
    if tasks < 1:
        raise SettingsError(f"a stream needs at least one task, got tasks={tasks}")
