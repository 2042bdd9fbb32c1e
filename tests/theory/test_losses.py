"""Losses by hand: their values, and that none is steeper than it says."""

from __future__ import annotations

import math

import pytest
import torch

from orthocl.errors import SettingsError
from orthocl.theory.losses import CLIPPED_ABSOLUTE, CLIPPED_SQUARE, LOSSES, MARGINS, ramp

U = torch.tensor([[0.3, 0.4], [3.0, 4.0], [1.0, -1.0], [0.5, 0.1]], dtype=torch.float64)
Y = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, -1.0], [0.0, 0.1]], dtype=torch.float64)


def test_clipped_losses_by_hand():
    assert CLIPPED_SQUARE.function(U, Y).tolist() == pytest.approx([0.25, 1.0, 0.0, 0.25])
    assert CLIPPED_ABSOLUTE.function(U, Y).tolist() == pytest.approx([0.5, 1.0, 0.0, 0.5])
    assert LOSSES == {"clipped-square": CLIPPED_SQUARE, "clipped-absolute": CLIPPED_ABSOLUTE}


@pytest.mark.parametrize(
    "loss",
    [CLIPPED_SQUARE, CLIPPED_ABSOLUTE, ramp(0.5), ramp(0.5, outputs=3)],
    ids=["clipped-square", "clipped-absolute", "ramp", "ramp of three"],
)
def test_no_loss_is_steeper_or_larger_than_it_says(loss):
    generator = torch.Generator().manual_seed(0)
    outputs = 3 if loss.lipschitz == pytest.approx(math.sqrt(2) / 0.5) else 1
    u, v = (torch.randn(5000, outputs, generator=generator, dtype=torch.float64) for _ in range(2))
    v = u + 0.05 * v
    y = torch.eye(3, dtype=torch.float64)[torch.arange(5000) % 3] if outputs > 1 else u.sign() * 0 + 1
    first, second = loss.function(u, y), loss.function(v, y)
    slopes = (first - second).abs() / (u - v).norm(dim=1)
    assert float(slopes.max()) <= loss.lipschitz * (1 + 1e-9)
    assert float(slopes.max()) > 0.9 * loss.lipschitz or loss is CLIPPED_SQUARE
    assert 0 <= float(first.min()) <= float(first.max()) <= loss.bound
    if loss.below_squared:
        assert bool((first <= (u - y).square().sum(1) + 1e-12).all())


def test_margins_and_what_is_no_margin():
    assert MARGINS == (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125)
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(SettingsError, match="margin above zero"):
            ramp(bad)
    assert ramp(0.25).lipschitz == 4.0
    assert (
        float(ramp(0.5).function(torch.tensor([[2.0]]), torch.tensor([[0.0]]))) == 1
    )  # no sign is no margin
    signs = ramp(0.5).function(torch.tensor([[0.25], [-0.25], [0.0]]), torch.tensor([[1.0], [-1.0], [1.0]]))
    assert signs.tolist() == [0.5, 0.5, 1.0]


def test_a_ramp_is_at_most_one_and_reaches_it():
    for outputs in (1, 3):
        for margin in MARGINS:
            loss = ramp(margin, outputs)
            wrong = loss.function(torch.eye(3)[:1, :outputs], -torch.eye(3)[:1, :outputs])
            assert float(wrong) == loss.bound == 1.0
