"""Learning one task in closed form: steps that do not overshoot are taken as they are."""

from __future__ import annotations

import math

import pytest
import torch

from orthocl.errors import SettingsError
from orthocl.theory.fits import (
    Descent,
    Regularised,
    early_stopping_ridge,
    forgetting_vector,
    largest_eigenvalue,
)

ONE = torch.ones(1, 1, dtype=torch.float64)


def test_a_step_that_does_not_overshoot_is_taken_whole():
    """With curvature 1: f = 1 - (1 - rate)^steps; a rate of 3 is covered in two steps of 1.5."""
    for rate, fitted in ((0.5, 0.5), (1.8, 1.8), (3.0, 1 - (1 - 1.5) ** 2)):
        found = Descent(learning_rate=rate, steps=1, loss="squared").coefficients(ONE, 0 * ONE, ONE)
        assert float(found) == pytest.approx(fitted)
    twice = Descent(learning_rate=1.8, steps=2, loss="squared").coefficients(ONE, 0 * ONE, ONE)
    assert float(twice) == pytest.approx(1 - (1 - 1.8) ** 2)


def test_cross_entropy_curves_half_as_much():
    """A rate of 3 at curvature 1 is one step under cross-entropy: the mean of softmax minus target, times the rate."""
    kernel = torch.eye(4, dtype=torch.float64)
    outputs = torch.tensor([[0.0, 0.0], [0.0, math.log(3.0)]], dtype=torch.float64)
    wanted = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    found = Descent(learning_rate=3.0, steps=1).coefficients(kernel, outputs, wanted)
    assert found.tolist() == pytest.approx([0.75, -0.75, 1.125, -1.125])


def test_descent_is_the_same_as_autograd_on_a_linear_model():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    wanted = torch.eye(3, dtype=torch.float64)[torch.tensor([0, 1, 2, 0, 1, 1])]
    weights = torch.zeros(5, 3, dtype=torch.float64, requires_grad=True)
    for _ in range(7):
        loss = torch.nn.functional.cross_entropy(features @ weights, wanted)
        (slope,) = torch.autograd.grad(loss, weights)
        weights = (weights - 0.2 * slope).detach().requires_grad_()
    kernel = torch.kron(features @ features.T, torch.eye(3, dtype=torch.float64))
    found = Descent(0.2, 7).coefficients(kernel, torch.zeros(6, 3, dtype=torch.float64), wanted)
    assert torch.allclose(features.T @ found.reshape(6, 3), weights.detach())


def test_rates_and_steps_at_the_edge():
    assert torch.equal(Descent(0.1, 0).coefficients(ONE, 0 * ONE, ONE), torch.zeros(1, dtype=torch.float64))
    for rate, steps in ((0.0, 1), (-0.1, 1), (math.inf, 1), (math.nan, 1), (0.1, -1)):
        with pytest.raises(SettingsError, match="learning rate > 0"):
            Descent(rate, steps)
    with pytest.raises(SettingsError, match="loss"):
        Descent(0.1, 1, loss="hinge")  # type: ignore[arg-type]


def test_the_ridge_and_what_it_forgets_by_hand():
    kernel = torch.tensor([[2.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    start, wanted = torch.tensor([[[1.0], [0.0]], [[3.0], [6.0]]], dtype=torch.float64)
    found = Regularised(2.0).coefficients(kernel, start, wanted)
    assert found.tolist() == pytest.approx([0.5, 1.0])
    moved = forgetting_vector(torch.tensor([[1.0, 3.0]]), kernel, torch.tensor([2.0, 6.0]), ridge=2.0)
    assert moved.tolist() == pytest.approx([3.5])
    assert early_stopping_ridge(samples=50, learning_rate=0.5, steps=20) == 5.0


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_the_unit_of_the_kernel_does_not_matter(scale):
    """By hand, as above: (c K + c ridge)^-1 r = (K + ridge)^-1 r / c."""
    kernel = scale * torch.tensor([[2.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    start, wanted = torch.tensor([[[1.0], [0.0]], [[3.0], [6.0]]], dtype=torch.float64)
    found = Regularised(2.0 * scale).coefficients(kernel, start, wanted)
    assert (scale * found).tolist() == pytest.approx([0.5, 1.0])
    cross = scale * torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    moved = forgetting_vector(cross, kernel, torch.tensor([2.0, 6.0]), ridge=2.0 * scale)
    assert moved.tolist() == pytest.approx([3.5])


def test_the_largest_eigenvalue_to_two_digits():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    matrix = root @ root.T
    assert largest_eigenvalue(matrix) == pytest.approx(float(torch.linalg.eigvalsh(matrix)[-1]), rel=1e-2)
    assert largest_eigenvalue(torch.zeros(3, 3)) == 0.0
    assert largest_eigenvalue(torch.zeros(0, 0)) == 0.0
