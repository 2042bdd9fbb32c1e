"""Classes as numbers: which samples, which targets, and whether tasks share them."""

from __future__ import annotations

import pytest
import torch

from orthocl.errors import DataError, SettingsError
from orthocl.streams import from_arrays
from orthocl.theory.regression_targets import accuracy, regression_tasks

LABELS = torch.tensor([0, 1, 2, 1, 0, 2])


def stream(*labels, kind=None):
    arrays = []
    for place, y in enumerate(labels):
        x = torch.arange(2.0 * len(y)).reshape(len(y), 2) + 100 * place
        arrays.append((x, y, x, y))
    return from_arrays(arrays)


@pytest.mark.parametrize(
    ("target", "expected"),
    [("parity", [1, -1, 1]), ("1", [-1, 1, -1]), ("0", [1, -1, -1]), ("2", [-1, -1, 1])],
)
def test_targets_of_each_class(target, expected):
    (task,) = regression_tasks(stream(LABELS), target=target, samples=6)
    assert task.targets.tolist() == [expected[label] for label in task.labels.tolist()]
    assert sorted(task.labels.tolist()) == sorted(LABELS.tolist())


def test_one_hot_targets_and_their_samples():
    (task,) = regression_tasks(stream(LABELS), target="one-hot", samples=4, test_samples=3)
    assert task.targets.argmax(1).tolist() == task.labels.tolist()
    assert task.targets.sum(1).tolist() == [1.0] * 4
    assert (len(task.inputs), len(task.test_inputs)) == (4, 3)
    rows = (task.inputs[:, 0] / 2).long()
    assert torch.equal(LABELS[rows], task.labels)


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(SettingsError, match="unknown target"):
        regression_tasks(stream(LABELS), target="odd")
    with pytest.raises(SettingsError, match="no task has a class 3"):
        regression_tasks(stream(LABELS), target="3")
    for samples, test_samples in ((0, 1), (1, 0)):
        with pytest.raises(SettingsError, match="at least one sample"):
            regression_tasks(stream(LABELS), samples=samples, test_samples=test_samples)
    from orthocl.streams import Task, TensorSplit

    x = torch.zeros(4, 2)
    parts = [TensorSplit(x, torch.tensor([0, 1, 0, 1])), TensorSplit(x, torch.tensor([0, 1, 2, 1]))]
    tasks = [Task(n + 1, str(n), part, part, head=str(n), outputs=n + 2) for n, part in enumerate(parts)]
    with pytest.raises(DataError, match=r"as many classes in every task, got \[2, 3\]"):
        regression_tasks(tasks, target="one-hot")
    assert len(regression_tasks(tasks, target="parity")) == 2


def test_accuracy_by_hand():
    assert accuracy(torch.tensor([1.0, -1.0, 2.0]), torch.tensor([1.0, 1.0, 1.0])) == pytest.approx(2 / 3)
    assert accuracy(torch.tensor([0.0]), torch.tensor([1.0])) == 0.5
    assert accuracy(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.eye(2)) == 0.0


@pytest.mark.parametrize("target", ["²", "٣", "1" * 30, "", "-1"])
def test_a_target_that_only_looks_like_a_number_is_refused(target):
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 2, 1])
    with pytest.raises(SettingsError, match=r"unknown target .* a class number"):
        regression_tasks(from_arrays([(x, y, x, y)]), target=target)
