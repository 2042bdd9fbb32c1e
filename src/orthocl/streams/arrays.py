"""Streams of the user's own data: arrays, tensors or torch Datasets, one pair per task. Regression too."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from orthocl.checking import check_value
from orthocl.errors import DataError, SettingsError, unknown_name
from orthocl.streams.base import Split, Stream, Task, TaskKind
from orthocl.streams.checks import Array, check_outputs, checked_samples, needed_outputs, target_kind
from orthocl.streams.views import stream_fingerprint

Heads = Literal["shared", "per-task"]


class TensorSplit(Split):
    """Samples that are already tensors, ready for the network."""

    def __init__(self, inputs: Tensor, targets: Tensor):
        self.tensor = inputs
        self.targets = targets

    def inputs(self, index: Tensor | slice | None = None) -> Tensor:
        """The inputs of the samples in `index`: views where indexing gives views."""
        return self.tensor if index is None else self.tensor[index]


class DatasetSplit(Split):
    """Any map-style torch Dataset of (input, target) pairs as a split, without copying it.

    Samples are read on demand; targets, when first needed, by reading each sample once.

    >>> data = TensorDataset(torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 0]))
    >>> DatasetSplit(data).inputs(torch.tensor([2]))
    tensor([[4., 5.]])
    """

    def __init__(self, dataset: Dataset[Any]):
        if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
            raise DataError(
                f"{type(dataset).__name__} has no length or no items: give a map-style torch Dataset or, "
                "to `attach`, an IterableDataset"
            )
        self.dataset = dataset
        self._tensors = _plain_tensors(dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    @cached_property
    def targets(self) -> Tensor:  # type: ignore[override]  # read once, when first asked for
        """Targets of all samples."""
        if self._tensors is not None:
            return self._tensors[1]
        return _stack([self._item(position)[1] for position in range(len(self))], "target")

    def inputs(self, index: Tensor | slice | None = None) -> Tensor:
        """Inputs of the samples in `index`, stacked, as the data set gives them: integers (words) stay integers."""
        return self.samples(index)[0]

    def samples(self, index: Tensor | slice | None = None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the samples in `index`, each item read once."""
        if self._tensors is not None:
            inputs, targets = self._tensors if index is None else (each[index] for each in self._tensors)
        else:
            positions = torch.arange(len(self))
            chosen = positions if index is None else positions[index]
            items = [self._item(position) for position in chosen.tolist()]
            inputs = _stack([item[0] for item in items], "input")
            targets = _stack([item[1] for item in items], "target")
        return inputs, targets

    def _item(self, position: int) -> tuple[Any, Any]:
        item = self.dataset[position]
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise DataError(
                f"item {position} of the data set is {type(item).__name__}, not a pair (input, target)"
            )
        return item[0], item[1]


@dataclass(frozen=True, eq=False, kw_only=True)
class ArrayStream(Stream):
    """Made by `from_arrays`, `from_datasets` and `from_npz`."""

    tasks: tuple[Task, ...]

    def __len__(self) -> int:
        return len(self.tasks)

    def task(self, number: int) -> Task:
        """The task at position `number`."""
        self.check_number(number)
        return self.tasks[number - 1]


def from_arrays(
    tasks: Sequence[tuple[Array, Array, Array, Array]],
    *,
    heads: Heads = "shared",
    kind: TaskKind | None = None,
    outputs: int | Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    name: str = "arrays",
    dtype: torch.dtype = torch.float32,
) -> ArrayStream:
    """A stream of your own arrays: for each task (x_train, y_train, x_test, y_test).

    Args:
        tasks: NumPy arrays or tensors. Inputs are converted to `dtype`, without scaling; class labels are
            integers from 0; regression targets are floats, (samples,) or (samples, outputs).
        heads: "shared" (all tasks have the same outputs) or "per-task" (each its own head).
        kind: "classification" or "regression"; by default decided by the dtype of the first targets.
        outputs: number of classes or of regression outputs, one for all or one per task; by default counted.
        names: names of the tasks.
        name: name of the stream.
        dtype: of the inputs and of regression targets.

    Raises:
        DataError: for data that cannot be trained on; it names the task.

    >>> import numpy as np
    >>> x, y = np.eye(4), np.array([0, 1, 2, 0])
    >>> stream = from_arrays([(x, y, x, y), (x[:, ::-1], y, x[:, ::-1], y)])
    >>> len(stream), stream.input_shape, dict(stream.heads)
    (2, (4,), {'main': 3})
    """
    if not isinstance(tasks, Sequence) or isinstance(tasks, str):
        raise DataError(f"expected a list of (x_train, y_train, x_test, y_test), got {type(tasks).__name__}")
    if not isinstance(dtype, torch.dtype):
        raise SettingsError(f"dtype must be a type of torch, such as torch.float32, got {dtype!r}")
    check_value("outputs", outputs, int | Sequence[int] | None, 1)
    _check_settings(len(tasks), heads, kind, names)
    splits: list[tuple[TensorSplit, TensorSplit]] = []
    for number, arrays in enumerate(tasks, start=1):
        if not isinstance(arrays, (tuple, list)) or len(arrays) != 4:
            raise DataError(f"task {number}: expected (x_train, y_train, x_test, y_test)")
        train = TensorSplit(*checked_samples(f"task {number}, train", *arrays[:2], kind, dtype))
        # The first task decides for the rest, so that a stray dtype later is an error, not a second kind.
        kind = target_kind(train.targets)
        test = TensorSplit(*checked_samples(f"task {number}, test", *arrays[2:], kind, dtype))
        splits.append((train, test))
    sizes = _head_sizes(splits, heads, outputs)
    shape = _input_shape(splits)
    settings = {"kind": "arrays", "tasks": len(splits), "heads": heads, "targets": kind, "outputs": sizes}
    made = tuple(
        Task(
            number,
            names[number - 1] if names else f"task {number}",
            train,
            test,
            head="main" if heads == "shared" else f"task-{number}",
            outputs=sizes[number - 1],
            kind=target_kind(train.targets),
        )
        for number, (train, test) in enumerate(splits, start=1)
    )
    return ArrayStream(
        name=name,
        input_shape=shape,
        heads={task.head: task.outputs for task in made},
        settings=settings,
        fingerprint=stream_fingerprint(_hash(splits), settings),
        tasks=made,
    )


def from_datasets(
    tasks: Sequence[tuple[Dataset[Any], Dataset[Any]]],
    *,
    heads: Heads = "shared",
    kind: TaskKind | None = None,
    outputs: int | Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    name: str = "datasets",
    dtype: torch.dtype = torch.float32,
    progress: Callable[[str, int, int], None] | None = None,
) -> ArrayStream:
    """A stream of torch Datasets: for each task (train, test), map-style, of (input, target) pairs.

    Each is read once into memory, so that batches are made by indexing. Arguments as for `from_arrays`;
    `progress` is called with the part being read, samples done and their total.

    >>> data = TensorDataset(torch.randn(8, 3), torch.arange(8) % 2)
    >>> len(from_datasets([(data, data), (data, data)]).task(2).train)
    8
    """
    arrays = []
    for number, pair in enumerate(tasks, start=1):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise DataError(f"task {number}: expected a pair of Datasets (train, test)")
        parts = [
            _read(f"task {number}, {part}", dataset, progress)
            for part, dataset in zip(("train", "test"), pair, strict=True)
        ]
        arrays.append((*parts[0], *parts[1]))
    return from_arrays(arrays, heads=heads, kind=kind, outputs=outputs, names=names, name=name, dtype=dtype)


def _read(
    where: str, dataset: Dataset[Any], progress: Callable[[str, int, int], None] | None
) -> tuple[Tensor, Tensor]:
    split = DatasetSplit(dataset)
    if not len(split):
        raise DataError(f"{where}: the data set is empty")
    pieces = []
    for first in range(0, len(split), 1024):
        pieces.append(split.samples(slice(first, first + 1024)))
        if progress is not None:
            progress(where, min(first + 1024, len(split)), len(split))
    try:
        inputs, targets = (torch.cat(tensors) for tensors in zip(*pieces, strict=True))
    except RuntimeError as error:
        raise DataError(f"{where}: samples of different shapes: {error}") from None
    return inputs, targets


def _check_settings(tasks: int, heads: str, kind: str | None, names: Sequence[str] | None) -> None:
    if not tasks:
        raise DataError("a stream needs at least one task: (x_train, y_train, x_test, y_test)")
    check_value("names", names, Sequence[str] | None)
    if names is not None and len(names) != tasks:
        raise SettingsError(f"{tasks} tasks need as many names, got {len(names)}")
    if not isinstance(heads, str) or heads not in ("shared", "per-task"):
        raise unknown_name("heads", heads, ("shared", "per-task"))
    if kind is not None and (not isinstance(kind, str) or kind not in ("classification", "regression")):
        raise unknown_name("kind of task", kind, ("classification", "regression"))


def _input_shape(splits: list[tuple[TensorSplit, TensorSplit]]) -> tuple[int, ...]:
    shape = tuple(splits[0][0].tensor.shape[1:])
    for number, pair in enumerate(splits, start=1):
        for part, one in zip(("train", "test"), pair, strict=True):
            if tuple(one.tensor.shape[1:]) != shape:
                raise DataError(
                    f"task {number}, {part}: inputs have shape {tuple(one.tensor.shape[1:])} per sample, "
                    f"those of task 1 {shape}: one network sees all of them, so they must agree"
                )
    return shape


def _head_sizes(
    splits: list[tuple[TensorSplit, TensorSplit]], heads: Heads, outputs: int | Sequence[int] | None
) -> list[int]:
    if outputs is None:
        # A test label beyond the training labels is a class that is never learnt: it fails the check below.
        needed = [needed_outputs(train.targets) for train, _ in splits]
        regression = splits[0][0].targets.is_floating_point()
        shared = needed[0] if regression else max(needed)
        sizes = [shared] * len(needed) if heads == "shared" else needed
    else:
        sizes = [outputs] * len(splits) if isinstance(outputs, int) else list(outputs)
    if len(sizes) != len(splits):
        raise SettingsError(f"{len(splits)} tasks need one number of outputs each, got {len(sizes)}")
    if heads == "shared" and len(set(sizes)) > 1:
        raise SettingsError(f"tasks with a shared head have equal outputs, got {sizes}: use heads='per-task'")
    for number, (size, (train, test)) in enumerate(zip(sizes, splits, strict=True), start=1):
        check_outputs(f"task {number}, train", train.targets, size)
        check_outputs(f"task {number}, test", test.targets, size)
    return sizes


def _hash(splits: list[tuple[TensorSplit, TensorSplit]]) -> str:
    digest = hashlib.sha256()
    for pair in splits:
        for one in pair:
            for tensor in (one.tensor, one.targets):
                digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _plain_tensors(dataset: object) -> tuple[Tensor, ...] | None:
    # Exactly a TensorDataset: a subclass may do anything in __getitem__.
    if type(dataset) is not TensorDataset or len(dataset.tensors) != 2:
        return None
    return dataset.tensors if all(each.layout == torch.strided for each in dataset.tensors) else None


def _stack(values: list[Any], what: str) -> Tensor:
    try:
        tensors = [torch.as_tensor(value) for value in values]
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"each {what} of a data set must be a tensor, an array or a number, got a {type(values[0]).__name__}: "
            "convert it in the data set (for images with a transform such as ToTensor, for names of classes to numbers)"
        ) from error
    odd = next((tensor.layout for tensor in tensors if tensor.layout != torch.strided), None)
    if odd is not None:
        raise DataError(
            f"each {what} of a data set must be dense, got {odd}: return x.to_dense() in the data set"
        )
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) != 1:
        raise DataError(f"each {what} of a data set must have the same shape, got {sorted(shapes)}")
    return torch.stack(tensors)
