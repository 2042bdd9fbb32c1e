"""Counterexamples to steps of proofs that ERRATA.md lists beside the failing statements."""

from __future__ import annotations

import pytest
import torch

from orthocl.theory import empirical_loss, solve_stream
from orthocl.theory.empirical_loss import fit_value


def test_the_first_step_is_missing_from_the_sum(problem):
    """f_T(X_1) = f_0(X_1) + sum over k >= 0 of phi(X_1)(w_{k+1} - w_k): all of it is in the term k = 0."""
    reference = problem.reference("ogd")
    x = problem.tasks[0][0]
    steps = [problem.phi(x) @ (reference.weights[k + 1] - reference.weights[k]) for k in range(4)]
    assert sum(step.abs().max() for step in steps[1:]) < 1e-9
    solution = problem.solve(rule="ogd")
    learnt = solution.predict(x) - problem.f0(x)
    assert (learnt - steps[0]).abs().max() < 1e-8
    assert learnt.abs().max() > 0.5


def test_the_norm_lemma_does_not_bound_the_coefficients():
    """K = lam = 0.1, residual 1: a K a = 2.5 <= S = 5 as the lemma says, but |a|^2 = 25."""
    x, y = torch.tensor([[0.1**0.5]], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    solution = solve_stream(lambda x, z: x @ z.T, [(x, y)], ridge=0.1)
    assert solution.distance(1) ** 2 == pytest.approx(2.5)
    assert solution.dissimilarity(1) == pytest.approx(5.0)
    assert float(solution.coefficients(1).square().sum()) == pytest.approx(25.0)


def test_a_partial_memory_needs_the_forgetting_terms(problem):
    full, partial = problem.solve(rule="ogd"), problem.solve(rule="ogd", memory=2)
    own = fit_value(partial, 1) / 12
    assert empirical_loss(full, 1) <= own * (1 + 1e-9)
    assert empirical_loss(partial, 1) > own


def test_the_gradient_needs_the_residual(problem):
    x, y = problem.tasks[0]
    phi, residual = problem.phi(x), problem.f0(x) - y
    gradient, printed = 2 * phi.T @ residual, phi.sum(0)
    cosine = float(gradient @ printed / gradient.norm() / printed.norm())
    assert abs(cosine) < 0.9
