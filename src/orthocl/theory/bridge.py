"""Theory beside practice: what the linearised network says about a network that was really trained.

Paper: section 6 (the tangents move in practice), Theorem 3's H terms (`thm:gen-ogd`).

Everything is a function of the weights at the ends of the tasks and of the tasks' data. At w_{t-1} the
network is linearised, the next task is learnt in closed form on a sample of its data (squared loss, one-hot
targets), and the change this makes on earlier tasks is put beside the change that training made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from orthocl.errors import DataError
from orthocl.nets import use_head
from orthocl.streams.base import Task
from orthocl.tangents import Tangents, collect
from orthocl.theory.ridge import solve_ridge

Snapshot = Mapping[str, Tensor]
"""A model's state dict."""


@dataclass(frozen=True)
class PairReport:
    """What learning one task did to an earlier one.

    Args:
        task: the task learnt.
        earlier: the task looked at.
        predicted_change: H / n, the mean squared change of its outputs, by the linearised network (SGD).
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
    """Theory beside practice for a whole stream."""

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


def early_stopping_ridge(samples: int, learning_rate: float, steps: int) -> float:
    """The ridge that stopping early amounts to, for descent on the mean of half the squared error.

    After s steps of size eta / n on ||.||^2 / 2 a direction of curvature c is fitted by 1 - (1 - eta c / n)^s,
    as a ridge n / (eta s) fits it to first order: c / (c + n / (eta s)).

    >>> early_stopping_ridge(samples=100, learning_rate=0.1, steps=1000)
    1.0
    """
    return samples / (learning_rate * steps)


class _Reader:
    """Outputs and tangents of samples of the tasks at given weights."""

    def __init__(self, model: nn.Module, tasks: Sequence[Task], samples: int, chunk: int):
        self.model = model
        self.tasks = tasks
        self.chunk = chunk
        self.data = [task.train.samples(torch.arange(min(samples, len(task.train)))) for task in tasks]
        self.parameters = dict(model.named_parameters())
        self.dtype = next(iter(self.parameters.values())).dtype

    def load(self, snapshot: Snapshot) -> None:
        self.model.load_state_dict(snapshot)
        self.model.eval()

    def labels(self, task: int) -> Tensor:
        return self.data[task - 1][1]

    def outputs(self, task: int) -> Tensor:
        with torch.no_grad(), use_head(self.model, self.tasks[task - 1].head):
            values: Tensor = self.model(self.data[task - 1][0].to(self.dtype))
        return values.double()

    def tangents(self, task: int, every: bool) -> Tangents:
        inputs, labels = self.data[task - 1]
        with use_head(self.model, self.tasks[task - 1].head):
            return collect(
                self.model,
                inputs.to(self.dtype),
                labels,
                parameters=self.parameters,
                variant="all" if every else "gtl",
                chunk=self.chunk,
            )


def bridge(
    model: nn.Module,
    snapshots: Sequence[Snapshot],
    tasks: Sequence[Task],
    *,
    ridge: float,
    samples: int = 100,
    chunk: int = 256,
    progress: Callable[[int], None] | None = None,
) -> BridgeReport:
    """Put the theory's numbers beside those of a trained network.

    Args:
        model: the network; its weights are put back as they were.
        snapshots: state dicts at initialisation and at the end of each task, T + 1 of them.
        tasks: the T tasks, classification.
        ridge: lam of the closed form; `early_stopping_ridge` suggests one.
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
    reader = _Reader(model, tasks, samples, chunk)
    try:
        learnt = []
        pairs: list[PairReport] = []
        for number in range(1, len(tasks) + 1):
            step, found = _learn(reader, snapshots, number, ridge)
            learnt.append(step)
            pairs += found
            if progress is not None:
                progress(number)
        reports = tuple(
            _report(reader, snapshots, number, learnt[number - 1], pairs)
            for number in range(1, len(tasks) + 1)
        )
    finally:
        model.load_state_dict(before)
    return BridgeReport(reports, tuple(pairs))


def _learn(
    reader: _Reader, snapshots: Sequence[Snapshot], number: int, ridge: float
) -> tuple[tuple[float, float], list[PairReport]]:
    """Learn one task in closed form at the weights before it; (S / n, learning rate) and the pairs."""
    reader.load(snapshots[number - 1])
    current = reader.tangents(number, every=True)
    start = {task: reader.outputs(task) for task in range(1, number + 1)}
    target = nn.functional.one_hot(reader.labels(number), start[number].shape[1]).double()
    residual = (target - start[number]).reshape(-1, 1)
    gram = current.gram()
    cutoff = 1e-12 * float(gram.diagonal().max())
    solved = solve_ridge(gram, residual, ridge, cutoff)
    dissimilarity = float((residual * solved.coefficients).sum()) / len(target)
    rate = 1 / (_largest_eigenvalue(gram) + ridge)
    predicted = {
        task: start[task]
        + (reader.tangents(task, every=True).gram(current) @ solved.in_range).reshape(start[task].shape)
        for task in range(1, number)
    }
    reader.load(snapshots[number])
    pairs = []
    for task in range(1, number):
        labels, after = reader.labels(task), reader.outputs(task)
        pairs.append(
            PairReport(
                number,
                task,
                _change(start[task], predicted[task]),
                _change(start[task], after),
                _accuracy(start[task], labels) - _accuracy(predicted[task], labels),
                _accuracy(start[task], labels) - _accuracy(after, labels),
            )
        )
    return (dissimilarity, rate), pairs


def _report(
    reader: _Reader,
    snapshots: Sequence[Snapshot],
    number: int,
    learnt: tuple[float, float],
    pairs: Sequence[PairReport],
) -> TaskReport:
    reader.load(snapshots[number])
    own, accuracy = (
        reader.tangents(number, every=False),
        _accuracy(reader.outputs(number), reader.labels(number)),
    )
    reader.load(snapshots[-1])
    final = reader.tangents(number, every=False)
    lengths, finals = own.gram().diagonal(), final.gram().diagonal()
    cosines = own.gram(final).diagonal() / (lengths * finals).sqrt().clamp_min(1e-300)
    return TaskReport(
        number,
        learnt[0],
        learnt[1],
        float(cosines.mean()),
        math.sqrt(float(finals.mean()) / max(float(lengths.mean()), 1e-300)),
        accuracy - _accuracy(reader.outputs(number), reader.labels(number)),
        sum(pair.predicted_drop for pair in pairs if pair.earlier == number),
    )


def _largest_eigenvalue(matrix: Tensor, iterations: int = 50) -> float:
    """By power iteration: two digits are enough to tell a stable learning rate."""
    vector = torch.ones(len(matrix), dtype=matrix.dtype) / math.sqrt(len(matrix))
    for _ in range(iterations):
        vector = matrix @ vector
        vector = vector / vector.norm().clamp_min(1e-300)
    return float(vector @ (matrix @ vector))


def _change(before: Tensor, after: Tensor) -> float:
    return float((after - before).square().sum()) / len(before)


def _accuracy(outputs: Tensor, labels: Tensor) -> float:
    return float((outputs.argmax(1) == labels).double().mean())
