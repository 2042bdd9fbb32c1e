"""Theory and practice: what the linearised network says about a network that was actually trained.

Paper: section 6 (the tangents move in practice), Theorem 3's H terms (`thm:gen-ogd`).

Everything is a function of the weights at the ends of the tasks and of the tasks' data. At w_{t-1} the
network is linearised, the next task is learnt in its kernel with the loss of the training (see `fits`), and the
change this causes on earlier tasks is compared with the change that training caused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from orthocl.checking import checked
from orthocl.errors import DataError
from orthocl.streams.base import Task
from orthocl.theory.fits import Descent, Fit, Regularised, early_stopping_ridge, largest_eigenvalue
from orthocl.theory.forecast import (
    ForecastMemory,
    ForecastRule,
    Reader,
    forecast,
    mean_squared_change,
    share_right,
)
from orthocl.theory.overlap import Snapshot, turned
from orthocl.theory.ridge import solve_ridge


@dataclass(frozen=True)
class PairReport:
    """What learning one task did to an earlier one.

    Args:
        task: the task learnt.
        earlier: the earlier task.
        predicted_change: H / n, the mean squared change of its outputs, by the linearised network.
        measured_change: the same, measured.
        predicted_drop: accuracy lost on the earlier task, by the linearised network.
        measured_drop: the same, measured.
    """

    task: int
    earlier: int
    predicted_change: float
    measured_change: float
    predicted_drop: float
    measured_drop: float


@dataclass(frozen=True)
class TaskReport:
    """One task of a trained network.

    Args:
        task: from 1.
        dissimilarity: S / n to what came before: the residual at w_{t-1} in the kernel at w_{t-1}.
        learning_rate: the largest stable full-batch rate for the paper's loss at w_{t-1}.
        tangent_cosine: mean cosine between the tangents of this task's samples at the end of the task and at
            the end of the stream; 1 in the NTK regime.
        tangent_growth: ratio of their root mean squared lengths.
        forgetting: measured accuracy lost between the end of the task and the end of the stream.
        predicted_forgetting: sum of the predicted drops of all later tasks.
    """

    task: int
    dissimilarity: float
    learning_rate: float
    tangent_cosine: float
    tangent_growth: float
    forgetting: float
    predicted_forgetting: float


@dataclass(frozen=True)
class BridgeReport:
    """Theory and practice for a whole stream."""

    tasks: tuple[TaskReport, ...]
    pairs: tuple[PairReport, ...]

    def ratio(self) -> float:
        """The median of measured over predicted mean squared change: 1 if the network were linear."""
        found = [
            pair.measured_change / pair.predicted_change for pair in self.pairs if pair.predicted_change > 0
        ]
        return float(torch.tensor(found, dtype=torch.float64).median()) if found else float("nan")

    def correlation(self) -> float:
        """Pearson correlation between predicted and measured log mean squared changes over all pairs."""
        rows = [
            (math.log(pair.predicted_change), math.log(pair.measured_change))
            for pair in self.pairs
            if pair.predicted_change > 0 and pair.measured_change > 0
        ]
        if len(rows) < 3:
            return float("nan")
        return float(torch.corrcoef(torch.tensor(rows, dtype=torch.float64).T)[0, 1])


@checked()
def bridge(
    model: nn.Module,
    snapshots: Sequence[Snapshot],
    tasks: Sequence[Task],
    *,
    fit: Fit,
    rule: ForecastRule = "sgd",
    memory_per_task: int = 100,
    samples: int = 100,
    chunk: int = 256,
    progress: Callable[[int], None] | None = None,
) -> BridgeReport:
    """Compare the theory's numbers with those of a trained network.

    Args:
        model: the network; its weights are restored afterwards.
        snapshots: state dicts at initialisation and at the end of each task, T + 1 of them.
        tasks: the T tasks, classification.
        fit: how each task is learnt: `Descent` with the loss of the training, or `Regularised` for Theorem 1's own.
        rule: how predictions treat earlier tasks.
        memory_per_task: samples that the rule remembers.
        samples: training samples per task to use (all logits of each are points).
        chunk: samples per forward pass.
        progress: called with each task's number when it is done.

    Raises:
        DataError: when there are not T + 1 snapshots.
    """
    if len(snapshots) != len(tasks) + 1:
        raise DataError(
            f"expected the weights at initialisation and after each of {len(tasks)} tasks, "
            f"got {len(snapshots)} snapshots"
        )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    reader = Reader(model, samples, chunk)
    memory = ForecastMemory(model, memory_per_task, chunk=chunk)
    try:
        learnt = []
        pairs: list[PairReport] = []
        for number, task in enumerate(tasks, start=1):
            model.load_state_dict(snapshots[number - 1])
            learnt.append(_price(reader, task, fit))
            expected = forecast(
                model,
                tasks[: number - 1],
                task,
                fit=fit,
                memory=memory,
                rules=[rule],
                samples=samples,
                chunk=chunk,
            )
            model.load_state_dict(snapshots[number])
            for each in expected:
                now = reader.outputs(tasks[each.earlier - 1])
                pairs.append(
                    PairReport(
                        number,
                        each.earlier,
                        each.change,
                        mean_squared_change(each.before, now),
                        each.drop,
                        share_right(each.before, each.labels) - share_right(now, each.labels),
                    )
                )
            memory.remember(task)
            if progress is not None:
                progress(number)
        reports = tuple(
            _report(reader, snapshots, task, own, pairs) for task, own in zip(tasks, learnt, strict=True)
        )
    finally:
        model.load_state_dict(before)
    return BridgeReport(reports, tuple(pairs))


def _price(reader: Reader, task: Task, fit: Fit) -> tuple[float, float]:
    """S / n of a task at the present weights, and the largest stable rate for the paper's loss."""
    outputs, labels = reader.outputs(task), reader.data(task)[1]
    residual = (nn.functional.one_hot(labels, outputs.shape[1]).double() - outputs).reshape(-1, 1)
    gram = reader.tangents(task, every=True).gram()
    ridge = _ridge(fit, len(labels))
    solved = solve_ridge(gram, residual, ridge, 1e-12 * float(gram.diagonal().max()))
    dissimilarity = float((residual * solved.coefficients).sum()) / len(labels)
    return dissimilarity, 1 / (largest_eigenvalue(gram) + ridge)


def _ridge(fit: Fit, samples: int) -> float:
    """The ridge of a fit, or what stopping early amounts to."""
    if isinstance(fit, Regularised):
        return fit.ridge
    if isinstance(fit, Descent) and fit.steps:
        return early_stopping_ridge(samples, fit.learning_rate, fit.steps)
    return 1.0


def _report(
    reader: Reader,
    snapshots: Sequence[Snapshot],
    task: Task,
    learnt: tuple[float, float],
    pairs: Sequence[PairReport],
) -> TaskReport:
    number, labels = task.number, reader.data(task)[1]
    reader.model.load_state_dict(snapshots[number])
    own, accuracy = reader.tangents(task, every=False), share_right(reader.outputs(task), labels)
    reader.model.load_state_dict(snapshots[-1])
    cosine, growth = turned(own, reader.tangents(task, every=False))
    return TaskReport(
        number,
        *learnt,
        cosine,
        growth,
        accuracy - share_right(reader.outputs(task), labels),
        sum(pair.predicted_drop for pair in pairs if pair.earlier == number),
    )
