"""Transposed convolutions: read off where each sample has an axis of its own, left to autograd where not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from orthocl.tangents import collect
from orthocl.tangents.convolutions import convolution


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("kind", "size"),
    [(nn.ConvTranspose1d, (5,)), (nn.ConvTranspose2d, (3, 4)), (nn.ConvTranspose3d, (2, 3, 2))],
)
def test_transposed_convolutions_are_read_off_unless_they_have_groups(kind, size, groups):
    torch.manual_seed(0)
    module = kind(4, 6, 3, stride=2, padding=1, groups=groups).double()
    x = torch.randn(3, 4, *size, dtype=torch.float64)
    z = module(x)
    d = torch.randn(3, 2, *z.shape[1:], dtype=torch.float64)
    parameters = dict(module.named_parameters())
    shapes = tuple(tuple(p.shape) for p in parameters.values())
    found = convolution(module, tuple(parameters), shapes, x, d)
    if groups == 2:
        assert found is None
        return
    rows = []
    for sample, derivatives in zip(x, d, strict=True):
        for one in derivatives:
            parts = torch.autograd.grad((module(sample[None])[0] * one).sum(), list(parameters.values()))
            rows.append(torch.cat([part.flatten() for part in parts]))
    torch.testing.assert_close(torch.cat([block.dense() for block in found], 1), torch.stack(rows))


def test_maps_without_an_axis_of_samples_are_not_read_off():
    """As many samples as channels: the first axis of such a map could be taken for theirs."""
    module = nn.ConvTranspose2d(3, 3, 2).double()
    x = torch.randn(3, 4, 4, dtype=torch.float64)
    shapes = tuple(tuple(p.shape) for p in module.parameters())
    assert convolution(module, ("weight", "bias"), shapes, x, module(x)[:, None].detach()) is None


@pytest.mark.parametrize("groups", [1, 2])
def test_rows_of_transposed_convolutions_with_groups_are_those_of_autograd(groups):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.ConvTranspose1d(4, 4, 3, groups=groups), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)
    )
    model, x, y = model.double(), torch.randn(4, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    found = collect(model, x, y, parameters=dict(model.named_parameters())).dense()
    rows = [
        torch.cat([part.flatten() for part in torch.autograd.grad(model(x)[i, y[i]], model.parameters())])
        for i in range(4)
    ]
    torch.testing.assert_close(found, torch.stack(rows))
