"""Streams as regression tasks: the theory fits numbers, streams hold labels.

Paper: Theorem 3 takes labels in {-1, 1}; section 3.2 considers networks with one logit per class.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from orthocl.errors import DataError, SettingsError, shortened
from orthocl.streams.base import Split, Task
from orthocl.streams.views import View


@dataclass(frozen=True)
class RegressionTask:
    """One task as the theory sees it.

    Args:
        name: of the task.
        inputs: (n, ...) float64.
        targets: (n,) for +-1 targets, (n, c) for one-hot ones.
        labels: the classes; None for regression.
        test_inputs: likewise.
        test_targets: likewise.
        source: for each training sample where it is stored, (store, row): tasks that show the same image have
            a pair in common, whatever they do to it. None where the task does not say.
    """

    name: str
    inputs: Tensor
    targets: Tensor
    labels: Tensor | None
    test_inputs: Tensor
    test_targets: Tensor
    source: Tensor | None = None


def regression_tasks(
    tasks: Sequence[Task],
    samples: int = 100,
    target: str = "parity",
    test_samples: int = 500,
    seed: int = 0,
    disjoint: bool = True,
) -> list[RegressionTask]:
    """Tasks with numbers to fit, on a number of samples of each.

    Args:
        tasks: a stream, or any sequence of tasks.
        samples: training samples per task, drawn at random.
        target: "parity" (+1 for even classes, -1 for odd ones), "one-hot" (one output per class) or a class
            number (+1 for that class, -1 for the rest). Regression tasks keep their own targets.
        test_samples: test samples per task.
        seed: of the draw.
        disjoint: whether no stored sample may serve two tasks. Permuted and rotated streams show the same images
            in every task; with disjoint=False the samples of tasks are the same images, and bounds that need
            independent samples do not hold.

    Raises:
        SettingsError: an unknown target, or not enough different samples for all tasks.

    >>> from orthocl.streams import from_arrays
    >>> x, y = torch.zeros(4, 2), torch.tensor([0, 1, 2, 1])
    >>> stream = from_arrays([(x, y, x, y)])
    >>> regression_tasks(stream, target="parity")[0].targets.sum()
    tensor(0., dtype=torch.float64)
    """
    number = re.fullmatch("[0-9]{1,18}", target) is not None
    if target not in ("parity", "one-hot") and not number:
        raise SettingsError(
            f"unknown target {shortened(target)!r}: the choices are parity, one-hot, or a class number"
        )
    if samples < 1 or test_samples < 1:
        raise SettingsError(f"expected at least one sample, got {samples} and {test_samples}")
    sizes = {task.outputs for task in tasks}
    if number and all(task.kind != "regression" and int(target) >= task.outputs for task in tasks):
        raise SettingsError(f"no task has a class {target}: classes count from 0 to {max(sizes) - 1}")
    if target == "one-hot" and len(sizes) > 1:
        raise DataError(f"one-hot targets need as many classes in every task, got {sorted(sizes)}")
    found = []
    used: dict[int, list[Tensor]] = {}
    generator = torch.Generator().manual_seed(seed)
    for task in tasks:
        if not disjoint:
            generator.manual_seed(seed)  # the same rows of every task
        rows = torch.randperm(len(task.train), generator=generator)
        store, stored = _stored(task.train)
        if disjoint and store in used:
            rows = rows[~torch.isin(stored[rows], torch.cat(used[store]))]
        if disjoint and used and len(rows) < min(samples, len(task.train)):
            raise SettingsError(
                f"task {task.name!r} has {len(rows)} samples that no earlier task uses, but {samples} are needed: take "
                "at most as many samples per task as the stored images divided by the tasks, or disjoint=False"
            )
        rows = rows[:samples]
        used.setdefault(store, []).append(stored[rows])
        inputs, targets, labels = _as_numbers(task, task.train, rows, target)
        test = torch.randperm(len(task.test), generator=torch.Generator().manual_seed(seed + 1))
        test_inputs, test_targets, _ = _as_numbers(task, task.test, test[:test_samples], target)
        source = torch.stack([torch.full_like(rows, store), stored[rows]], 1)
        found.append(RegressionTask(task.name, inputs, targets, labels, test_inputs, test_targets, source))
    return found


def _stored(split: Split) -> tuple[int, Tensor]:
    """Which store a split reads, and the stored row of each of its samples."""
    if isinstance(split, View):
        every = torch.arange(len(split.stored))
        return split.stored.data_ptr(), every if split.rows is None else split.rows
    return id(split), torch.arange(len(split))


def _as_numbers(task: Task, split: Split, rows: Tensor, target: str) -> tuple[Tensor, Tensor, Tensor | None]:
    inputs, labels = split.samples(rows)
    if task.kind == "regression":
        return inputs.double(), labels.double(), None
    labels = labels.long()
    if target == "one-hot":
        return inputs.double(), nn.functional.one_hot(labels, task.outputs).double(), labels
    positive = labels % 2 == 0 if target == "parity" else labels == int(target)
    return inputs.double(), positive.double() * 2 - 1, labels


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of samples whose sign (or largest output) is right; an output of zero is half right.

    >>> accuracy(torch.tensor([0.2, -3.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 1.0, -1.0]))
    0.5
    """
    if outputs.ndim == 1:
        return float((outputs.sign() * targets.sign() + 1).double().mean()) / 2
    return float((outputs.argmax(1) == targets.argmax(1)).double().mean())
