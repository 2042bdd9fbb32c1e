"""Penalties that a step left out are said once; batch statistics stop after the first task, if they shall."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from orthocl.errors import UnsupportedError
from orthocl.methods import EWC, METHODS, OGD, SGD, Method
from orthocl.training import attach


def steps(learner, split, penalised, count=2):
    with learner.learning(split):
        for _ in range(count):
            inputs, targets = split.samples()
            learner.optimizer.zero_grad()
            loss = learner.loss(learner.model(inputs), targets)
            (loss + learner.penalty() if penalised else loss).backward()
            learner.optimizer.step()


def test_the_first_task_has_no_penalty_to_leave_out(make, data):
    learner = make(EWC())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(learner, data[0], penalised=False)
        steps(learner, data[1], penalised=True)
    with pytest.warns(UserWarning, match="works through a penalty") as found:
        steps(learner, data[2], penalised=False)
    (said,) = [each for each in found if "penalty" in str(each.message)]
    assert said.filename == __file__


@pytest.mark.parametrize("policy", ["freeze", "keep"])
def test_batch_statistics_move_in_the_first_task_only_or_in_all(policy, data):
    """With a learning rate of zero nothing else moves; afterwards the layer trains as ever."""
    norm = nn.BatchNorm1d(4).double()
    net = nn.Sequential(norm, nn.Linear(4, 3).double())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    learner = attach(OGD(memory_per_task=4), net, optimizer, batch_norm=policy)
    moved = []
    for split in data[:3]:
        before = norm.running_mean.clone()
        steps(learner, split, penalised=False)
        moved.append(not torch.equal(before, norm.running_mean))
    assert moved == [True, policy == "keep", policy == "keep"]
    before = norm.running_mean.clone()
    net(data[0].samples()[0])
    assert not torch.equal(before, norm.running_mean)


def test_a_certificate_sees_statistics_that_moved(data):
    net = nn.Sequential(nn.BatchNorm1d(4).double(), nn.Linear(4, 3).double())
    learner = attach(
        OGD(memory_per_task=4), net, torch.optim.SGD(net.parameters(), lr=0.0), batch_norm="keep"
    )
    for split in data[:2]:
        steps(learner, split, penalised=False)
    found = learner.certificate({"first": data[0].samples()})
    assert found.probes[-1].change.measured > 0


@pytest.mark.parametrize(("targets", "kind"), [(torch.float64, "regression"), (torch.long, "classification")])
def test_numbers_are_regression_and_labels_are_classes(make, data, targets, kind):
    learner = make(SGD())
    inputs, labels = data[0].samples()
    with learner.learning(TensorDataset(inputs, labels.to(targets))):
        assert learner.current_task.kind == kind


class Nudge(Method):
    """Adds one to every gradient, in place."""

    name = "nudge"

    def transform(self, learner, gradient):
        torch._foreach_add_(list(gradient), 1.0)
        return gradient


def test_a_method_may_work_in_place_on_weights_without_a_gradient(data):
    """One layer is not used: its gradient is None, and what the method makes of it counts."""
    net = nn.ModuleDict({"used": nn.Linear(4, 3, bias=False), "unused": nn.Linear(1, 1, bias=False)}).double()
    start = net["unused"].weight.detach().clone()
    learner = attach(Nudge(), net, torch.optim.SGD(net.parameters(), lr=0.25))
    with learner.learning(data[0]):
        inputs, targets = data[0].samples()
        learner.loss(net["used"](inputs), targets).backward()
        learner.optimizer.step()
    torch.testing.assert_close(net["unused"].weight.detach(), start - 0.25)


class _Fourier(nn.Module):
    """A layer with complex weights, which takes real inputs."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.cfloat))
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(torch.fft.irfft(torch.fft.rfft(x) @ self.weight, n=4))


class _Pixels(nn.Module):
    """A frozen base in bfloat16 under float32 adapters: it takes pixels in bfloat16 alone."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(4, 5).bfloat16().requires_grad_(False)
        self.down, self.up = nn.Linear(4, 2), nn.Linear(2, 5)
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        return self.out((self.base(x) + self.up(self.down(x.float())).bfloat16()).tanh().float())


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        (_Fourier(), torch.float32, torch.float32),
        (_Pixels(), torch.bfloat16, torch.bfloat16),
        (nn.Linear(4, 3), torch.float64, torch.float32),
        (nn.Linear(4, 3).double(), torch.float32, torch.float64),
        (nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(12, 3)), torch.int32, torch.int32),
    ],
)
def test_inputs_are_converted_only_where_the_model_does_not_take_them(model, given, expected):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = attach(SGD(), model, optimizer).to_model(torch.ones(2, 4, dtype=given))
    assert inputs.dtype == expected
    assert model(inputs).shape == (2, 3)


@pytest.mark.parametrize("name", ["ogd", "ogd+", "a-gem", "ewc", "mas", "si"])
def test_complex_weights_are_refused_where_gradients_are_compared(name):
    model = _Fourier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnsupportedError, match="complex weights such as 'weight'"):
        attach(METHODS[name](), model, optimizer)
    attach(METHODS[name](), model, optimizer, protect=["out"])
