"""Importances on models that cannot be differentiated for many samples at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from orthocl import ER, EWC, MAS, OGD, attach
from orthocl.methods.quadratic import quadratic_penalty


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells, self.out = kind(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.cells(x)[0][:, -1])


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(20, 3), nn.Linear(20, 3)

    def forward(self, x):
        return torch.stack([(self.left if row.sum() > 0 else self.right)(row.flatten()) for row in x])


MODELS = {
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "branching": Branching,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["ewc", "mas"])
def test_importances_are_means_over_single_samples(name, method):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    x, y = torch.randn(9, 5, 4).double(), torch.randint(3, (9,))
    made = {"ewc": EWC(fisher="label"), "mas": MAS()}[method]
    learner = attach(made, model, torch.optim.SGD(model.parameters(), lr=0.1))
    with learner.learning(TensorDataset(x, y)):
        pass
    expected = [torch.zeros_like(p) for p in model.parameters()]
    for one, label in zip(x, y, strict=True):
        outputs = model(one[None])[0]
        value = outputs.log_softmax(0)[label] if method == "ewc" else outputs.square().sum()
        model.zero_grad()
        value.backward()
        for total, p in zip(expected, model.parameters(), strict=True):
            if p.grad is not None:
                total += (p.grad.square() if method == "ewc" else p.grad.abs()) / len(x)
    for found, truth in zip(made.importance, expected, strict=True):
        torch.testing.assert_close(found, truth)
    assert max(float(t.max()) for t in expected) > 0


def test_the_penalty_can_be_differentiated_twice():
    w = torch.tensor([3.0, 1.0], dtype=torch.float64, requires_grad=True)
    importance, centre = torch.tensor([2.0, 5.0]).double(), torch.tensor([1.0, -1.0]).double()

    def penalty(v):
        return quadratic_penalty([v], [importance], [centre], strength=0.5)

    assert torch.autograd.gradcheck(penalty, (w,))
    assert torch.autograd.gradgradcheck(penalty, (w,))
    many = [torch.randn(2, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    other = [torch.rand(2, dtype=torch.float64) for _ in range(6)]
    assert torch.autograd.gradgradcheck(lambda *v: quadratic_penalty(v, other[:3], other[3:], 0.7), many)


def test_a_penalty_that_is_weighted_by_something_learnt():
    """3 times 0.5 * (2 (w_1 - 1)^2 + 5 (w_2 + 1)^2) at (3, 1), with a factor that has a gradient itself."""
    w = torch.tensor([3.0, 1.0], dtype=torch.float64, requires_grad=True)
    factor = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    importance, centre = torch.tensor([2.0, 5.0]).double(), torch.tensor([1.0, -1.0]).double()
    value = factor * quadratic_penalty([w], [importance], [centre], strength=0.5)
    (gradient,) = torch.autograd.grad(value, w, create_graph=True)
    assert gradient.tolist() == pytest.approx([12.0, 30.0])
    assert float(torch.autograd.grad(gradient.sum(), factor)[0]) == pytest.approx(14.0)


@pytest.mark.parametrize("method", [EWC(), ER(memory_per_task=0), OGD(memory_per_task=0)])
def test_a_memory_of_nothing_is_allowed(method):
    model = nn.Linear(20, 3).double()
    x, y = torch.randn(9, 20).double(), torch.randint(3, (9,))
    learner = attach(method, model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        with learner.learning(TensorDataset(x, y)):
            (learner.loss(model(x), y) + learner.penalty()).backward()
            learner.optimizer.step()
    assert learner.tasks_done == 2
