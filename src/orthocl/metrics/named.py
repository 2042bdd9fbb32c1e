"""Every metric by name, each a pure function of the accuracy matrix.

The same words mean different things in different libraries; here each definition has its own name. T = 1 gives
NaN where a metric needs a second task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from orthocl.errors import SettingsError
from orthocl.metrics.accuracy_matrix import AccuracyMatrix
from orthocl.registry import Registry

Metric = Callable[[AccuracyMatrix], float]


def average_accuracy(a: AccuracyMatrix) -> float:
    """Mean accuracy over all tasks after the last one.

    Paper: AAC, section 7.

    >>> round(average_accuracy(AccuracyMatrix.from_rows([[0, 0], [0.9, 0.2], [0.7, 0.8]])), 6)
    0.75
    """
    return _mean(a[a.tasks, task] for task in _tasks(a))


def backward_transfer(a: AccuracyMatrix) -> float:
    """Mean over earlier tasks of final accuracy minus accuracy just after learning the task.

    Paper: BWT. The printed sum runs to T, where the last term is 0; here to T - 1.
    """
    return _mean(a[a.tasks, task] - a[task, task] for task in _earlier(a))


def backward_transfer_all_pairs(a: AccuracyMatrix) -> float:
    """Mean over all pairs tau < t of a[t, tau] - a[tau, tau] (Diaz-Rodriguez et al. 2018)."""
    return _mean(a[after, task] - a[task, task] for after in _tasks(a) for task in range(1, after))


def forward_transfer(a: AccuracyMatrix) -> float:
    """Mean over tasks from the second of accuracy just before learning the task minus accuracy at initialisation.

    Paper: FWT.
    """
    return _mean(a[task - 1, task] - a[0, task] for task in range(2, a.tasks + 1))


def forward_accuracy(a: AccuracyMatrix) -> float:
    """Forward transfer without the accuracy at initialisation: zero-shot accuracy on the next task."""
    return _mean(a[task - 1, task] for task in range(2, a.tasks + 1))


def forgetting(a: AccuracyMatrix) -> float:
    """Mean over earlier tasks of the best accuracy before the last task minus the final one (Chaudhry et al. 2018).

    Paper: AFM, F_T = mean over tau < T of max_{t < T} a[t, tau] - a[T, tau]. The best is over rows 1 .. T-1, also
    those before the task was learnt. The paper's tables print -F_T.
    """
    last = a.tasks
    return _mean(_max(a[t, task] for t in range(1, last)) - a[last, task] for task in _earlier(a))


def forgetting_since_learnt(a: AccuracyMatrix) -> float:
    """Forgetting with the best accuracy taken since the task was learnt, before the last task."""
    last = a.tasks
    return _mean(_max(a[t, task] for t in range(task, last)) - a[last, task] for task in _earlier(a))


def forgetting_with_last(a: AccuracyMatrix) -> float:
    """Forgetting with the best accuracy over all rows including the last: never negative for any task."""
    last = a.tasks
    return _mean(_max(a[t, task] for t in range(1, last + 1)) - a[last, task] for task in _earlier(a))


def forgetting_first_minus_last(a: AccuracyMatrix) -> float:
    """Mean over earlier tasks of accuracy just after learning the task minus the final one: -BWT."""
    return -backward_transfer(a)


def learning_accuracy(a: AccuracyMatrix) -> float:
    """Mean accuracy on each task just after learning it (Riemer et al. 2019)."""
    return _mean(a[task, task] for task in _tasks(a))


def over_parameterisation(parameters: int, samples_per_task: Iterable[int]) -> float:
    """O: parameters / mean number of training samples per task.

    Paper: section 7.1.

    >>> round(over_parameterisation(113_610, [60_000] * 15), 1)
    1.9
    """
    return parameters / _mean(map(float, samples_per_task))


def memorised_variation(memorised: list[dict[int, float]], task: int = 1) -> float:
    """Training accuracy on a task's remembered samples after the last task minus just after learning it.

    Paper: the quantity of Figures 1 to 4, for the first task.

    >>> memorised_variation([{1: 1.0}, {1: 0.9, 2: 1.0}])
    -0.09999999999999998
    """
    rows = [row[task] for row in memorised if task in row]
    return rows[-1] - rows[0] if rows else math.nan


def _metric(value: Any, spec: str) -> Metric:
    if not callable(value):
        raise SettingsError(f"{spec} is not a function of an AccuracyMatrix that returns a number")
    metric: Metric = value
    return metric


_BUILTIN: dict[str, Metric] = {
    "aac": average_accuracy,
    "bwt": backward_transfer,
    "bwt-all-pairs": backward_transfer_all_pairs,
    "fwt": forward_transfer,
    "fwt-accuracy": forward_accuracy,
    "forgetting": forgetting,
    "forgetting-since-learnt": forgetting_since_learnt,
    "forgetting-with-last": forgetting_with_last,
    "forgetting-first-minus-last": forgetting_first_minus_last,
    "learning-accuracy": learning_accuracy,
}

METRICS: Registry[Metric] = Registry("metric", dict(_BUILTIN), _metric)


def compute(name: str, a: AccuracyMatrix) -> float:
    """A metric by its name, module or file.

    >>> compute("aac", AccuracyMatrix.from_rows([[0.0], [0.5]]))
    0.5
    """
    return float(METRICS[name](a))


def _tasks(a: AccuracyMatrix) -> range:
    return range(1, a.tasks + 1)


def _earlier(a: AccuracyMatrix) -> range:
    return range(1, a.tasks)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else math.nan


def _max(values: Iterable[float]) -> float:
    """The largest value; NaN if any value is NaN, whatever its position."""
    found = list(values)
    return math.nan if any(math.isnan(value) for value in found) else max(found)
