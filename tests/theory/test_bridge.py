from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from orthocl.errors import DataError, SettingsError
from orthocl.nets import make_net
from orthocl.streams import from_arrays
from orthocl.theory import Regularised, bridge, early_stopping_ridge, linearise, solve_stream
from orthocl.theory.bridge import BridgeReport, PairReport
from orthocl.theory.empirical import EmpiricalNTK
from orthocl.theory.regression_targets import accuracy, regression_tasks
from orthocl.training.theory_bridge import train_with_theory


def make_stream(tasks=3, samples=12, heads="shared"):
    generator = torch.Generator().manual_seed(0)
    data = []
    for _ in range(tasks):
        x, y = (
            torch.randn(samples, 5, generator=generator),
            torch.randint(0, 3, (samples,), generator=generator),
        )
        y[:3] = torch.arange(3)
        data.append((x, y, x, y))
    return from_arrays(data, heads=heads)


def test_on_a_linear_model_the_predictions_are_exact():
    """Weights moved by the closed form itself: predicted and measured changes agree, tangents do not turn."""
    stream = make_stream()
    net = make_net("mlp", stream.input_shape, stream.heads, {"hidden": [16]}, seed=0).double()
    linear = linearise(net)
    kernel = EmpiricalNTK(net, "all")
    data = [t.train.samples() for t in stream]
    tasks = [(x.double(), nn.functional.one_hot(y, 3).double()) for x, y in data]
    solution = solve_stream(kernel, tasks, rule="sgd", ridge=0.5)
    tangents = kernel.tangents(solution.points).dense()
    states = [{name: v.clone() for name, v in linear.state_dict().items()}]
    total = torch.zeros(tangents.shape[1], dtype=torch.float64)
    for task in range(1, 4):
        total = total + tangents.T @ solution.groups[0].recursion.steps[task - 1].span.flatten()
        parts, start = {}, 0
        for name, value in states[0].items():
            parts[name] = total[start : start + value.numel()].reshape(value.shape)
            start += value.numel()
        states.append(parts)
    report = bridge(linear, states, list(stream), fit=Regularised(0.5), samples=12)
    assert len(report.pairs) == 3
    for pair in report.pairs:
        assert pair.predicted_change == pytest.approx(pair.measured_change, rel=1e-6)
        assert pair.predicted_drop == pytest.approx(pair.measured_drop)
    assert report.ratio() == pytest.approx(1.0, rel=1e-6)
    for task in report.tasks:
        assert task.tangent_cosine == pytest.approx(1.0)
        assert task.tangent_growth == pytest.approx(1.0)
        assert task.dissimilarity == pytest.approx(solution.dissimilarity(task.task) / 12, rel=1e-6)
        assert task.forgetting == pytest.approx(task.predicted_forgetting, abs=1e-9)
        assert task.learning_rate == pytest.approx(solution.max_learning_rate(task.task), rel=0.02)
    assert all(torch.equal(v, states[0][k]) for k, v in linear.state_dict().items())


@pytest.mark.parametrize(("heads", "loss"), [("shared", "squared"), ("per-task", "cross-entropy")])
def test_a_trained_network(heads, loss):
    from orthocl.methods import make_method
    from orthocl.training import TrainSettings

    stream = make_stream(heads=heads)
    net = make_net("mlp", stream.input_shape, stream.heads, {"hidden": [32]}, seed=0)
    seen = []
    report, progress = train_with_theory(
        net,
        stream,
        make_method("sgd"),
        TrainSettings(epochs=20, batch_size=4, learning_rate=0.05),
        loss=loss,
        samples=12,
        on_theory=seen.append,
    )
    assert seen == [1, 2, 3]
    assert len(progress.accuracies) == 4
    assert [(pair.task, pair.earlier) for pair in report.pairs] == [(2, 1), (3, 1), (3, 2)]
    assert 0.5 < report.ratio() < 2
    assert all(0 < task.tangent_cosine <= 1 + 1e-6 for task in report.tasks)


def test_early_stopping_is_a_ridge_to_first_order():
    ridge = early_stopping_ridge(50, 0.1, 200)
    for curvature in (0.01, 0.05):
        filtered = 1 - (1 - 0.1 * curvature / 50) ** 200
        assert filtered == pytest.approx(curvature / (curvature + ridge), rel=0.02)


def test_snapshots_must_match():
    stream = make_stream()
    net = make_net("mlp", stream.input_shape, stream.heads, {"hidden": [4]}, seed=0)
    with pytest.raises(DataError, match="snapshots"):
        bridge(net, [net.state_dict()], list(stream), fit=Regularised(1.0))


def test_regression_tasks():
    stream = make_stream()
    parity, hot, one = (regression_tasks(stream, samples=8, target=t)[0] for t in ("parity", "one-hot", "2"))
    assert parity.targets.shape == (8,)
    assert torch.equal(parity.targets, 1.0 - 2.0 * (parity.labels % 2))
    assert torch.equal(hot.targets.argmax(1), hot.labels)
    assert torch.equal(one.targets == 1, one.labels == 2)
    assert torch.equal(parity.inputs, hot.inputs)
    x, y = torch.zeros(3, 2), torch.tensor([0.5, 1.0, 2.0])
    plain = regression_tasks(from_arrays([(x, y, x, y)]), samples=3)[0]
    assert sorted(plain.targets.flatten().tolist()) == [0.5, 1.0, 2.0]
    assert regression_tasks(stream, samples=1, test_samples=1)[0].targets.shape == (1,)
    with pytest.raises(SettingsError, match="unknown target"):
        regression_tasks(stream, target="odd")
    assert accuracy(torch.eye(3), torch.eye(3)) == 1


def test_draws_of_tasks_that_share_images_are_disjoint():
    from orthocl.streams import make

    stream = make("rotated-mnist-mini", tasks=3)
    tasks = regression_tasks(stream, samples=50)
    rows = torch.cat([task.source for task in tasks])
    assert len(torch.unique(rows, dim=0)) == 150
    assert not torch.equal(tasks[0].targets, tasks[1].targets)
    with pytest.raises(SettingsError, match="no earlier task uses"):
        regression_tasks(stream, samples=3000)
    shared = regression_tasks(stream, samples=3000, disjoint=False)
    assert len(torch.unique(torch.cat([task.source for task in shared]), dim=0)) == 3000
    assert torch.equal(shared[0].targets, shared[2].targets)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_dissimilarity_of_tasks_in_any_units(scale):
    """f = W x has the kernel x x^T for every output: S / n = r^T (K + ridge)^-1 r / n by a plain solve."""
    stream = make_stream(tasks=1)
    x, y = stream[0].train.samples()
    (task,) = from_arrays([(scale * x, y, x, y)])
    weight = torch.arange(15.0, dtype=torch.float64).reshape(3, 5).cos() / scale
    model = nn.Linear(5, 3, bias=False).double()
    before = {"weight": weight}
    ridge = 10 * scale**2
    (found,) = bridge(model, [before, before], [task], fit=Regularised(ridge), samples=12).tasks
    assert model.training  # as it was
    inputs, labels = task.train.samples()
    residual = nn.functional.one_hot(labels, 3).double() - inputs.double() @ weight.T
    kernel = inputs.double() @ inputs.double().T
    solved = torch.linalg.solve(kernel + ridge * torch.eye(12, dtype=torch.float64), residual)
    assert found.dissimilarity == pytest.approx(float((residual * solved).sum()) / 12, rel=1e-6)
    largest = float(torch.linalg.eigvalsh(kernel)[-1])
    assert found.learning_rate == pytest.approx(1 / (largest + ridge), rel=0.02)


def test_the_correlation_of_changes_is_that_of_their_logarithms():
    """Logs 0, 1, 2, 3 against 0, 2, 1, 5: covariance 7 of 5 and 14; pairs without a change do not count."""

    def pair(predicted: float, measured: float) -> PairReport:
        return PairReport(2, 1, predicted, measured, 0.0, 0.0)

    pairs = [pair(math.exp(x), math.exp(y)) for x, y in ((0, 0), (1, 2), (2, 1), (3, 5))]
    assert BridgeReport((), (*pairs, pair(0.0, 1.0), pair(1.0, 0.0))).correlation() == pytest.approx(
        7 / math.sqrt(5 * 14)
    )
    assert BridgeReport((), tuple(pairs)).ratio() == pytest.approx(1.0)
    assert math.isnan(BridgeReport((), tuple(pairs[:2])).correlation())
