"""Streams as regression tasks: the theory fits numbers, streams hold labels.

Paper: Theorem 3 takes labels in {-1, 1}; section 3.2 considers networks with one logit per class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from orthocl.errors import DataError, SettingsError
from orthocl.streams.base import Split, Task


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
    """

    name: str
    inputs: Tensor
    targets: Tensor
    labels: Tensor | None
    test_inputs: Tensor
    test_targets: Tensor


def regression_tasks(
    tasks: Sequence[Task],
    samples: int = 100,
    target: str = "parity",
    test_samples: int = 500,
    seed: int = 0,
) -> list[RegressionTask]:
    """Tasks with numbers to fit, on so many samples of each.

    Args:
        tasks: a stream, or any sequence of tasks.
        samples: training samples per task, drawn at random.
        target: "parity" (+1 for even classes, -1 for odd ones), "one-hot" (one output per class) or a class
            number (+1 for that class, -1 for the rest). Regression tasks keep their own targets.
        test_samples: test samples per task.
        seed: of the draw.

    >>> from orthocl.streams import from_arrays
    >>> x, y = torch.zeros(4, 2), torch.tensor([0, 1, 2, 1])
    >>> stream = from_arrays([(x, y, x, y)])
    >>> regression_tasks(stream, target="parity")[0].targets.sum()
    tensor(0., dtype=torch.float64)
    """
    if target not in ("parity", "one-hot") and not target.isdigit():
        raise SettingsError(f"unknown target {target!r}: the choices are parity, one-hot, or a class number")
    if samples < 1 or test_samples < 1:
        raise SettingsError(f"expected at least one sample, got {samples} and {test_samples}")
    sizes = {task.outputs for task in tasks}
    if target.isdigit() and all(task.kind != "regression" and int(target) >= task.outputs for task in tasks):
        raise SettingsError(f"no task has a class {target}: classes count from 0 to {max(sizes) - 1}")
    if target == "one-hot" and len(sizes) > 1:
        raise DataError(f"one-hot targets need as many classes in every task, got {sorted(sizes)}")
    found = []
    for task in tasks:
        inputs, targets, labels = _draw(task, task.train, samples, target, seed)
        test_inputs, test_targets, _ = _draw(task, task.test, test_samples, target, seed + 1)
        found.append(RegressionTask(task.name, inputs, targets, labels, test_inputs, test_targets))
    return found


def _draw(
    task: Task, split: Split, samples: int, target: str, seed: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(split), generator=generator)[:samples]
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
