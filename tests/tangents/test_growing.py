"""Tangents of a model that has grown: those of before, and zeros for all that is new."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from orthocl.tangents import collect
from orthocl.tangents.growing import grown_tangents


class Growing(nn.Module):
    def __init__(self, convolution: bool):
        super().__init__()
        self.first = nn.Conv1d(2, 3, 3) if convolution else nn.Linear(5, 3)
        self.last = nn.Linear(9 if convolution else 6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)).flatten(1))


@pytest.mark.parametrize("convolution", [False, True])
def test_grown_tangents_are_padded_with_zeros(convolution):
    """A longer last layer, a new linear layer, a norm, and a parameter that belongs to no layer."""
    torch.manual_seed(0)
    model = Growing(convolution).double()
    x, y = torch.randn(4, 2, 5, dtype=torch.float64), torch.tensor([0, 1, 1, 0])
    parameters = dict(model.named_parameters())
    before = collect(model, x, y, parameters=parameters)
    old = dict(
        zip(parameters, before.dense().split([p.numel() for p in parameters.values()], 1), strict=True)
    )
    model.last = nn.Linear(model.last.in_features, 4).double()
    model.added, model.norm = nn.Linear(3, 2).double(), nn.LayerNorm(3).double()
    model.scale = nn.Parameter(torch.ones(5, dtype=torch.float64))
    now = dict(model.named_parameters())
    found = grown_tangents(before, model, now)
    assert list(found.names) == list(now)
    assert sorted(name for block in found.blocks for name in block.names) == sorted(now)
    parts = found.dense().split([p.numel() for p in now.values()], 1)
    for (name, p), part in zip(now.items(), parts, strict=True):
        expected = torch.zeros(4, p.numel(), dtype=torch.float64)
        if name in old:
            expected[:, : old[name].shape[1]] = old[name]
        torch.testing.assert_close(part, expected)
