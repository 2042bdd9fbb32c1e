"""What the theory says about a stream before anything is trained: dissimilarity, complexity, predicted forgetting.

Each stream is learnt in closed form (Theorem 1) on a sample of its data, squared error to one-hot targets, with the
ridge that the protocol's training time amounts to. One head for all tasks: the kernel of the infinitely wide network
with PyTorch's initialisation. A head per task: infinitely wide networks with separate heads do not interfere at all, so
the kernel is that of the real network at its initial weights, every (sample, logit of its own head) a point.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from orthocl.errors import StoreError, UnsupportedError
from orthocl.lab import RunSettings
from orthocl.lab.run.execute import make_stream
from orthocl.nets import MultiHead, make_net
from orthocl.storage import write_output
from orthocl.streams import Stream
from orthocl.theory import (
    EmpiricalNTK,
    InfiniteWidthNTK,
    Points,
    Solution,
    certify,
    complexity_terms,
    early_stopping_ridge,
    solve_stream,
)
from orthocl.theory.regression_targets import regression_tasks

FILE = "theory.json"
"""Where a store of kept records keeps the predictions."""
DIGITS = 6
"""Significant digits kept, so that equal predictions are equal files."""
Rule = Literal["sgd", "ogd"]
RULES: tuple[Rule, ...] = ("sgd", "ogd")


@dataclass(frozen=True)
class Prediction:
    """The theory's numbers for one stream; one entry per task in each list.

    Args:
        stream: label of the stream.
        settings: hash of the stream's, network's and training settings that it is for.
        fingerprint: of the stream's data.
        kernel: what the kernel is of.
        samples: training samples per task.
        test_samples: test samples per task, on which forgetting is predicted.
        ridge: of the closed form.
        dissimilarity: S_t / n to what came before, by rule.
        complexity: the task's term of R_T, by rule.
        forgetting: predicted growth of the squared error per test sample from the end of the task to the end of the
            stream, by rule.
        bounds: smallest valid bound on f's own error on each task after the last one, by rule; empty if not asked for.
    """

    stream: str
    settings: str
    fingerprint: str
    kernel: str
    samples: int
    test_samples: int
    ridge: float
    dissimilarity: Mapping[str, Sequence[float]]
    complexity: Mapping[str, Sequence[float]]
    forgetting: Mapping[str, Sequence[float]]
    bounds: Mapping[str, Sequence[float]] = field(default_factory=dict)


def settings_hash(run: RunSettings) -> str:
    """What the prediction for a run depends on, besides the data and the seed of the weights."""
    resolved = run.resolved()
    train = [resolved.train.epochs, resolved.train.batch_size, resolved.train.learning_rate]
    recorded = resolved.recorded()
    values = [recorded["stream"], recorded["net"], train]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def fitting(predictions: Mapping[str, Prediction], runs: Sequence[RunSettings]) -> dict[str, Prediction]:
    """The predictions that are for the streams of these runs with just these settings."""
    wanted = {(run.stream_label, settings_hash(run)) for run in plain_runs(runs).values()}
    return {name: found for name, found in predictions.items() if (name, found.settings) in wanted}


def plain_runs(runs: Sequence[RunSettings]) -> dict[str, RunSettings]:
    """For each stream the first run of plain SGD."""
    return {run.stream_label: run for run in reversed(runs) if run.method_label == "sgd"}


class AllHeads(nn.Module):
    """A multi-head network with the logits of all its heads, one after the other."""

    def __init__(self, model: MultiHead):
        super().__init__()
        self.trunk = model.trunk
        self.heads = model.heads

    def forward(self, inputs: Tensor) -> Tensor:
        """All logits."""
        features = self.trunk(inputs)
        return torch.cat([head(features) for head in self.heads], dim=1)


def predict_stream(
    run: RunSettings, data_root: str | Path | None = None, samples: int = 100, head_samples: int = 10
) -> Prediction:
    """The theory's numbers for the stream, network and training time of a run.

    Args:
        run: a run of plain SGD on the stream.
        data_root: folder of the data sets.
        samples: training and test samples per task, where all tasks share a head.
        head_samples: the same where each has its own.
    """
    resolved = run.resolved()
    stream = make_stream(resolved.stream, None if data_root is None else str(data_root))
    count = samples if len(stream.heads) == 1 else head_samples
    ridge = _ridge(resolved, stream, count)
    solved = (
        _shared(stream, resolved, count, ridge)
        if len(stream.heads) == 1
        else _split(stream, resolved, count, ridge)
    )
    return Prediction(
        run.stream_label or resolved.stream.name,
        settings_hash(run),
        stream.fingerprint,
        solved[0],
        count,
        count,
        _rounded(ridge),
        {
            rule: _all(s.dissimilarity(t) / s.samples(t) for t in range(1, len(s) + 1))
            for rule, s, _ in solved[1]
        },
        {rule: _all(complexity_terms(s)) for rule, s, _ in solved[1]},
        {rule: _all(lost) for rule, _, lost in solved[1]},
    )


def bound_stream(
    run: RunSettings, data_root: str | Path | None = None, points: int = 3000, delta: float = 0.05
) -> dict[str, list[float]]:
    """The smallest valid bound on f's own error on each task after the last one, by rule.

    The tasks are learnt in closed form on different samples, a tenth of which is kept out of training for the form
    that needs it; all forms hold together with probability 1 - delta.

    Args:
        run: a run on a stream whose tasks share a head.
        data_root: folder of the data sets.
        points: samples of all tasks together.
        delta: probability that the bounds of a task may fail.
    """
    resolved = run.resolved()
    stream = make_stream(resolved.stream, None if data_root is None else str(data_root))
    if len(stream.heads) > 1:
        raise UnsupportedError("bounds are for tasks that share a head")
    count = max(10, min(points // len(stream), min(len(task.train) for task in stream) // len(stream)))
    kept = count - max(1, count // 10)
    tasks = regression_tasks(list(stream), count, "one-hot", 1)
    kernel, _ = _wide_kernel(resolved)
    ridge = _ridge(resolved, stream, kept)
    found: dict[str, list[float]] = {}
    for rule in RULES:
        data = [(task.inputs[:kept].flatten(1), task.targets[:kept]) for task in tasks]
        solution = solve_stream(kernel, data, rule=rule, ridge=ridge)
        held = [(task.inputs[kept:].flatten(1), task.targets[kept:]) for task in tasks]
        found[rule] = _all(
            certify(solution, task=number, delta=delta, held_out=out).deterministic.deterministic
            for number, out in enumerate(held, start=1)
        )
    return found


def _ridge(run: RunSettings, stream: Stream, count: int) -> float:
    """What the training time of a run amounts to on so many samples a task."""
    sizes = [len(task.train) for task in stream]
    steps = run.train.epochs * -(-sum(sizes) // len(sizes) // run.train.batch_size)
    return early_stopping_ridge(count, run.train.learning_rate, steps)


def _wide_kernel(run: RunSettings) -> tuple[InfiniteWidthNTK, str]:
    """The kernel of the infinitely wide network of a run, and words for it."""
    if run.net.name != "mlp":
        raise UnsupportedError(f"there is no kernel of an infinitely wide {run.net.name}: take an mlp")
    widths = [int(width) for width in run.net.settings["hidden"]]
    kernel = InfiniteWidthNTK(len(widths), parameterisation="pytorch", widths=widths)
    return kernel, f"infinitely wide MLP with {len(widths)} hidden layers"


Solved = tuple[str, list[tuple[Rule, Solution, list[float]]]]
"""Words for the kernel; for each rule the closed form and the predicted forgetting of every task."""


def _shared(stream: Stream, run: RunSettings, count: int, ridge: float) -> Solved:
    tasks = regression_tasks(list(stream), count, "one-hot", count, disjoint=False)
    kernel, words = _wide_kernel(run)
    found: list[tuple[Rule, Solution, list[float]]] = []
    for rule in RULES:
        data = [(task.inputs.flatten(1), task.targets) for task in tasks]
        solution = solve_stream(kernel, data, rule=rule, ridge=ridge)
        values = solution.trajectory(torch.cat([task.test_inputs.flatten(1) for task in tasks]))
        found.append((rule, solution, _losses(values, [task.test_targets for task in tasks])))
    return words, found


def _split(stream: Stream, run: RunSettings, count: int, ridge: float) -> Solved:
    net = make_net(run.net.name, stream.input_shape, stream.heads, dict(run.net.settings), seed=run.seed)
    if not isinstance(net, MultiHead):
        raise StoreError(f"expected a network with a head per task, got {type(net).__name__}")
    kernel = EmpiricalNTK(AllHeads(net), "gtl", dtype=torch.float32)
    tasks = regression_tasks(list(stream), count, "one-hot", count, disjoint=False)
    offsets = dict(zip(stream.heads, _starts(list(stream.heads.values())), strict=True))
    firsts = [offsets[task.head] for task in stream]
    data = [
        (_own_logits(task.inputs, task.targets.shape[1], first), task.targets.flatten())
        for task, first in zip(tasks, firsts, strict=True)
    ]
    tests = Points.concatenate(
        [
            _own_logits(task.test_inputs, task.test_targets.shape[1], first)
            for task, first in zip(tasks, firsts, strict=True)
        ]
    )
    found: list[tuple[Rule, Solution, list[float]]] = []
    for rule in RULES:
        solution = solve_stream(kernel, data, rule=rule, ridge=ridge)
        targets = [task.test_targets.flatten() for task in tasks]
        lost = _losses(solution.trajectory(tests), targets)
        found.append(
            (rule, solution, [value * len(t) / count for value, t in zip(lost, targets, strict=True)])
        )
    return f"{run.net.name} at its initial weights, seed {run.seed}", found


def _losses(values: Sequence[Tensor], targets: Sequence[Tensor]) -> list[float]:
    """By how much the squared error per row of every task grows from its end to the end of the stream."""
    lost, start = [], 0
    for number, target in enumerate(targets, start=1):
        rows = slice(start, start + len(target))
        start += len(target)
        errors = [
            (values[after][rows] - target).square().sum() / len(target) for after in (number, len(targets))
        ]
        lost.append(float(errors[1] - errors[0]))
    return lost


def _own_logits(inputs: Tensor, outputs: int, first: int) -> Points:
    """One point per (input, logit of its own head), the logits of an input next to each other."""
    return Points.labelled(
        inputs.repeat_interleave(outputs, dim=0), torch.arange(first, first + outputs).repeat(len(inputs))
    )


def _starts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:number]) for number in range(len(sizes))]


def read_predictions(path: Path) -> dict[str, Prediction]:
    """The predictions in a file, by stream; none if there is no such file."""
    try:
        values: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["streams"]
        return {entry["stream"]: Prediction(**entry) for entry in values}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} does not hold predictions ({error}): remove it and make it again"
        ) from error


def write_predictions(path: Path, predictions: Mapping[str, Prediction]) -> None:
    """Write predictions, readable and in a fixed order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {"streams": [asdict(predictions[name]) for name in sorted(predictions)]}
    write_output(path, (json.dumps(values, indent=1) + "\n").encode())


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _all(values: Any) -> list[float]:
    return [_rounded(float(value)) for value in values]
