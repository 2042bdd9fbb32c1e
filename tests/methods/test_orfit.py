"""ORFit: which directions count does not depend on the units of the inputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from orthocl.methods import ORFit
from orthocl.streams import TensorSplit
from orthocl.training import attach


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e5])
def test_repeated_samples_are_one_direction_in_any_units(scale, learn):
    """Three samples, each twice, all of one class: three directions."""
    generator = torch.Generator().manual_seed(0)
    inputs = scale * torch.randn(3, 5, generator=generator, dtype=torch.float64).repeat(2, 1)
    net = nn.Linear(5, 2, bias=False).double()
    learner = attach(ORFit(memory_per_task=6), net, torch.optim.SGD(net.parameters(), lr=1e-30))
    learn(learner, TensorSplit(inputs, torch.zeros(6, dtype=torch.long)), steps=1)
    assert learner.method.monitor(learner)["rank"] == 3
    assert len(learner.method.rows[0]) == 3


def test_the_kept_rows_are_the_leading_singular_directions(learn):
    """With two components: singular values times right singular vectors of the tangents."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    net = nn.Linear(5, 2, bias=False).double()
    method = ORFit(memory_per_task=6, components=2)
    learner = attach(method, net, torch.optim.SGD(net.parameters(), lr=1e-30))
    learn(learner, TensorSplit(inputs, torch.zeros(6, dtype=torch.long)), steps=1)
    tangents = torch.cat([inputs, torch.zeros_like(inputs)], 1)
    _, values, directions = torch.linalg.svd(tangents, full_matrices=False)
    kept = method.rows[0].flatten(1)
    expected = values[:2, None] * directions[:2]
    torch.testing.assert_close(kept.T @ kept, expected.T @ expected)
