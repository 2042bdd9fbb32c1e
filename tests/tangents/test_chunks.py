"""Samples that are differentiated together weigh no more than a number of bytes."""

import pytest
import torch
from torch import nn

from orthocl.tangents import chunks, collect
from orthocl.tangents.chunks import chunk_size, weighing


def test_what_a_forward_pass_keeps_is_counted_once_and_without_the_weights():
    model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 3))
    x = torch.randn(50, 10)[:4]
    with weighing(model) as kept:
        model(x).sum()
    assert sum(kept.values()) == 4 * (
        4 * 10 + 4 * 20
    )  # the input and the hidden layer, which both layers keep


def test_as_many_as_a_training_step_takes_are_the_least():
    assert chunk_size(2**40, 0, 1) == 50
    assert chunk_size(2**40, 0, 8) == 6
    assert chunk_size(0, 0, 1000) == 1


@pytest.mark.parametrize(("limit", "largest"), [(2**28, 9), (3 * 8 * 600, 3)])
def test_large_networks_are_differentiated_a_few_samples_at_a_time(limit, largest, monkeypatch):
    monkeypatch.setattr(chunks, "BYTES", limit)
    monkeypatch.setattr(chunks, "LEAST", 1)
    torch.manual_seed(0)
    model, seen = nn.Sequential(nn.Linear(100, 100), nn.Tanh(), nn.Linear(100, 100)).double(), []
    x, y = torch.randn(9, 100, dtype=torch.float64), torch.arange(9)
    parameters = dict(model.named_parameters())
    expected = collect(model, x, y, parameters=parameters, chunk=9).dense()
    model.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    found = collect(model, x, y, parameters=parameters)
    assert max(seen) == largest
    torch.testing.assert_close(found.dense(), expected, rtol=1e-12, atol=1e-14)
