"""Lemmas lem:rademacher-kernels and lem:rademacher-tasks: what the complexity measure bounds and what not."""

from __future__ import annotations

import math

import pytest
import torch

from orthocl.theory import complexity_proxy, rademacher_bound, rademacher_estimate, solve_stream
from orthocl.theory.complexity import rademacher_lower_bound


def linear(x, z):
    return x @ z.T


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_bound_on_one_sample_is_tight_to_a_factor_of_the_square_root_of_two(problem, rule):
    solution = problem.solve(rule=rule)
    for task in (1, 4):
        ratio = rademacher_estimate(solution, task, draws=4000) / rademacher_bound(solution, task)
        assert 1 / math.sqrt(2) - 0.02 < ratio <= 1.02


def test_estimate_agrees_with_a_supremum_taken_explicitly(problem):
    """For each draw of signs the supremum over the balls is attained; compare with explicit features."""
    solution, reference = problem.solve(rule="ogd", memory=None), problem.reference("ogd")
    phi = problem.phi(problem.tasks[0][0])
    generator = torch.Generator().manual_seed(1)
    total = 0.0
    draws = 4000
    signs = torch.randint(0, 2, (draws, len(phi)), generator=generator).double() * 2 - 1
    for task in range(1, 5):
        radius = math.sqrt(solution.dissimilarity(task))
        # sup over ||w|| <= B of <w, sum_i e_i P phi_i> is B times the length.
        total += radius * float((signs @ phi @ reference.projectors[task - 1]).norm(dim=1).mean())
    assert rademacher_estimate(solution, 1, draws=draws) == pytest.approx(total / len(phi), rel=0.03)


@pytest.mark.parametrize("columns", [1, 3])
def test_bounds_of_one_point_by_hand(columns):
    """x = 2, y = 3 for every output, ridge 1: S = 9 c / 5, and the length of sum_i e_i x_i is always 2 sqrt(c)."""
    x, y = torch.tensor([[2.0]]).double(), torch.full((1, columns), 3.0).double()
    solution = solve_stream(linear, [(x, y)], ridge=1.0)
    expected = math.sqrt(9 * columns / 5) * 2 * math.sqrt(columns)
    assert rademacher_bound(solution, 1) == pytest.approx(expected)
    assert rademacher_estimate(solution, 1, draws=10) == pytest.approx(expected)
    assert rademacher_lower_bound(solution, 1) == pytest.approx(expected / math.sqrt(2))


def test_counterexample_to_the_printed_lemma():
    """(x, y) = (1, .1) then (.01, 1), lam = 1e-4: 70.74 on the first sample, 1.61 printed (with its factor 2)."""
    tasks = [(torch.tensor([[1.0]]), torch.tensor([0.1])), (torch.tensor([[0.01]]), torch.tensor([1.0]))]
    tasks = [(x.double(), y.double()) for x, y in tasks]
    solution = solve_stream(linear, tasks, rule="sgd", ridge=1e-4)
    assert rademacher_estimate(solution, 1, draws=10) == pytest.approx(70.74, abs=0.01)
    assert rademacher_bound(solution, 1) == pytest.approx(70.74, abs=0.01)
    assert 2 * complexity_proxy(solution) == pytest.approx(1.61, abs=0.01)


def test_proxy_is_the_printed_expression(problem):
    solution = problem.solve(rule="ogd")
    total = 0.0
    for task in range(1, 5):
        kernel, r = solution.effective_gram(task), solution.residual(task)
        inverse = torch.linalg.inv(kernel + 0.05 * torch.eye(len(kernel)).double())
        total += math.sqrt(float(kernel.trace()) / len(kernel) ** 2 * float(r @ inverse @ r))
    assert complexity_proxy(solution) == pytest.approx(total, rel=1e-9)
