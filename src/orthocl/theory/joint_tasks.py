"""Tasks as (inputs, targets) pairs, laid out on the rows of one joint kernel matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from orthocl.checking import check_value
from orthocl.errors import DataError
from orthocl.theory.kernels import Kernel
from orthocl.theory.points import Points, PointsLike, real_numbers

TaskData = tuple[PointsLike, Tensor | np.ndarray]
"""Inputs (or points) and targets of one task."""

Initial = Callable[[Points], Tensor]
"""The function before the first task."""


@dataclass(frozen=True)
class JointTasks:
    """Several tasks on the rows of one kernel matrix.

    Args:
        points: the points of all tasks, one after the other.
        blocks: the rows of each task.
        targets: targets of each task, (rows, columns).
        samples: number of inputs of each task.
        initial: f_0.
        start: f_0 on all rows, (rows, columns).
        vector: whether the targets were given as vectors.
    """

    points: Points
    blocks: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    samples: tuple[int, ...]
    initial: Initial
    start: Tensor
    vector: bool


def join_tasks(kernel: Kernel, tasks: Sequence[TaskData], initial: Initial | float | None) -> JointTasks:
    """Check tasks and lay them out one after the other.

    Raises:
        DataError: no tasks, empty tasks, or targets that do not fit the inputs.
    """
    pairs = isinstance(tasks, Sequence) and all(
        isinstance(task, tuple | list) and len(task) == 2 for task in tasks
    )
    if not pairs:
        raise DataError(f"expected a list of tasks (inputs, targets), got {str(tasks)[:60]}")
    if not tasks:
        raise DataError("expected at least one task (inputs, targets), got none")
    parts = [kernel.points(x) for x, _ in tasks]
    targets, vector = _targets(kernel, parts, [y for _, y in tasks])
    points = Points.concatenate(parts)
    function = _initial(kernel, initial)
    ends = torch.tensor([len(part) for part in parts]).cumsum(0).tolist()
    return JointTasks(
        points=points,
        blocks=tuple(torch.arange(end - len(part), end) for end, part in zip(ends, parts, strict=True)),
        targets=tuple(targets),
        samples=tuple(part.samples() for part in parts),
        initial=function,
        start=as_matrix(function(points), len(points), targets[0].shape[1]),
        vector=vector,
    )


def as_matrix(values: Tensor, rows: int, columns: int) -> Tensor:
    """Values of the initial function as a (rows, columns) matrix; one value per row serves all columns."""
    values = real_numbers(values, "values of the initial function")
    if not bool(values.isfinite().all()):
        raise DataError("the initial function must give finite numbers: some are infinite or not numbers")
    if values.numel() == rows * columns:
        return values.reshape(rows, columns)
    if values.numel() == rows:
        return values.reshape(rows, 1).repeat(1, columns)
    raise DataError(
        f"the initial function must give {columns} value(s) for each of {rows} points, "
        f"got shape {tuple(values.shape)}"
    )


def _targets(
    kernel: Kernel, parts: Sequence[Points], values: Sequence[Tensor | np.ndarray]
) -> tuple[list[Tensor], bool]:
    """Targets as (rows, columns) float64 matrices, and whether they came as vectors."""
    matrices = []
    given = [real_numbers(value, "targets") for value in values]
    if given[0].ndim == 0:
        raise DataError("expected one target per sample, got a single number")
    vector = given[0].ndim == 1
    for number, (part, value) in enumerate(zip(parts, given, strict=True), start=1):
        samples = len(part) // kernel.outputs
        if samples == 0:
            raise DataError(f"task {number} has no samples")
        if len(value) != samples or (value.ndim == 1) != vector or value.ndim > 2:
            raise DataError(
                f"task {number}: expected targets for {samples} samples, shaped ({samples},) or "
                f"({samples}, outputs) alike in all tasks, got {tuple(value.shape)}"
            )
        if kernel.outputs > 1 and value.shape != (samples, kernel.outputs):
            raise DataError(
                f"task {number}: this kernel has {kernel.outputs} outputs, so targets must have shape "
                f"({samples}, {kernel.outputs}), got {tuple(value.shape)}"
            )
        if not bool(value.isfinite().all()):
            raise DataError(f"task {number}: targets must be finite numbers")
        matrices.append(value.reshape(len(part), -1))
    if len({matrix.shape[1] for matrix in matrices}) != 1:
        raise DataError("expected the same number of outputs in every task")
    return matrices, vector


def _initial(kernel: Kernel, initial: Initial | float | None) -> Initial:
    if initial is None:
        return kernel.initial
    if callable(initial):
        return initial
    check_value("initial", initial, float)
    value = float(initial)
    return lambda points: torch.full((len(points),), value, dtype=torch.float64)
