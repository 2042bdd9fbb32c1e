"""A-GEM against its definition with explicit gradients."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from orthocl.methods import AGEM, AGEMNT
from orthocl.nets import MLP, MultiHead
from orthocl.streams import Task
from orthocl.training import attach


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


@pytest.mark.parametrize(("kind", "always"), [(AGEM, False), (AGEMNT, True)])
def test_the_step_is_the_projected_gradient(make, data, learn, kind, always):
    learner = make(kind(memory_per_task=12, reference_batch=100))
    learn(learner, data[0])
    net = learner.model
    inputs, targets = data[0].samples()  # the reference batch is every remembered sample: all of task 1
    reference = flat(torch.autograd.grad(cross_entropy(net(inputs), targets), list(net.parameters())))
    sizes = [p.numel() for p in net.parameters()]
    with learner.learning(data[1]):
        for sign in (1.0, -1.0):
            gradient = flat([torch.randn_like(p) for p in net.parameters()])
            gradient = gradient * torch.sign(gradient @ reference) * sign
            expected = gradient
            if sign < 0 or always:
                expected = gradient - (gradient @ reference) / (reference @ reference) * reference
            shaped = [g.view_as(p) for g, p in zip(gradient.split(sizes), net.parameters(), strict=True)]
            found = flat(learner.method.transform(learner, shaped))
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
            assert (abs(float(found @ reference)) < 1e-10) == (sign < 0 or always)


def test_a_vanishing_reference_gradient_changes_nothing(make, data, learn):
    learner = make(AGEMNT(memory_per_task=4))
    learn(learner, data[0])
    learner.loss = lambda outputs, targets: outputs.sum() * 0.0
    gradient = [torch.randn_like(p) for p in learner.parameters.values()]
    with learner.learning(data[1]):
        found = learner.method.transform(learner, gradient)
        learner.loss = cross_entropy
    assert all(torch.equal(a, b) for a, b in zip(found, gradient, strict=True))


def test_each_remembered_sample_is_judged_by_its_own_head(data):
    torch.manual_seed(0)
    model = MultiHead(MLP((4,), hidden=(5,)), {"a": 3, "b": 3}).double()
    learner = attach(AGEM(memory_per_task=12), model, torch.optim.SGD(model.parameters(), lr=0.1))
    tasks = [Task(n + 1, h, data[n], data[n], head=h, outputs=3) for n, h in enumerate("ab")]
    for task in tasks:
        with learner.learning(task):
            pass
    model.select("a")
    first = cross_entropy(model(data[0].inputs()), data[0].targets)
    model.select("b")
    second = cross_entropy(model(data[1].inputs()), data[1].targets)
    expected = torch.autograd.grad((first + second) / 2, list(model.trunk.parameters()))
    with learner.learning(tasks[0]):
        found = learner.method.reference_gradient(learner)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert model.selected == "a"


def test_the_reference_pass_leaves_batch_statistics_alone(data):
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = attach(AGEM(memory_per_task=6), model, optimizer, batch_norm="keep")
    with learner.learning(data[0]):
        pass
    before = copy.deepcopy(dict(model.named_buffers()))
    with learner.learning(data[1]):
        learner.method.transform(learner, [torch.randn_like(p) for p in learner.parameters.values()])
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert model[1].track_running_stats


@pytest.mark.parametrize(("share", "projected"), [(0.05, False), (0.2, True)])
def test_a_reference_is_ignored_below_its_share_of_the_gradient(
    make, data, learn, share, projected, monkeypatch
):
    """tolerance=0.1: a reference of a twentieth of the gradient's length is noise, one of a fifth is not."""
    learner = make(AGEM(memory_per_task=4, tolerance=0.1))
    learn(learner, data[0])
    gradient = [torch.randn_like(p) for p in learner.parameters.values()]
    reference = [-share * g for g in gradient]
    monkeypatch.setattr(learner.method, "reference_gradient", lambda learner: reference)
    with learner.learning(data[1]):
        found = flat(learner.method.transform(learner, gradient))
    expected = torch.zeros_like(found) if projected else flat(gradient)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
