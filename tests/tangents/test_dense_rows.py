"""Differentiating sample by sample: what it costs is said before it is paid."""

import sys
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from orthocl.tangents import collect
from orthocl.tangents.dense_rows import plain_steps


class Silent(nn.Module):
    """Uses a layer's weight without calling it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(functional.linear(x, self.first.weight, self.first.bias)))


@pytest.fixture
def unpaid(monkeypatch):
    """Nothing is differentiated sample by sample: an error instead."""

    def refuse(*_):
        raise ArithmeticError("paid")

    monkeypatch.setattr(sys.modules["orthocl.tangents.collect"], "per_sample_gradients", refuse)


def test_the_price_is_named_before_it_is_paid(unpaid):
    model, x, y = Silent(), torch.randn(96, 4), torch.arange(96) % 3
    price = r"'first.weight', 'first.bias' cannot be .* 96 samples .* takes 9.6 kB and about as long as 3 plain steps"
    with pytest.warns(UserWarning, match=price), pytest.raises(ArithmeticError, match="paid"):
        collect(model, x, y, parameters=dict(model.named_parameters()), chunk=10)


def test_every_output_has_its_price(unpaid):
    model, x, y = Silent(), torch.randn(96, 4), torch.arange(96) % 3
    with pytest.warns(UserWarning, match="takes 28.8 kB .* 7 plain"), pytest.raises(ArithmeticError):
        collect(model, x, y, parameters=dict(model.named_parameters()), variant="all")


def test_it_is_said_once_for_each_model():
    model, x, y = Silent(), torch.randn(6, 4), torch.arange(6) % 3
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            collect(model, x, y, parameters=dict(model.named_parameters()), chunk=2)
    assert len(seen) == 1


def test_nothing_is_said_where_nothing_is_paid():
    model, x, y = nn.Linear(4, 3), torch.randn(6, 4), torch.arange(6) % 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collect(model, x, y, parameters=dict(model.named_parameters()))


def test_a_backward_pass_takes_two_forward_passes():
    assert plain_steps(32, 1) == 1.0
    assert plain_steps(32, 10) == 7.0
