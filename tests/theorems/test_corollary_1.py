"""Corollary 1 (cor:weight-dist) and Remark 2 (rem:weight-dist): how far the weights move."""

from __future__ import annotations

import pytest
import torch

from orthocl.theory import TwoLayerNTK, radius_bound, solve_stream, transfer_distance


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_distances_are_those_of_the_weights(problem, rule):
    solution, reference = problem.solve(rule=rule), problem.reference(rule)
    for task in range(1, 5):
        moved = float((reference.weights[task] - reference.weights[task - 1]).norm())
        assert solution.distance(task) == pytest.approx(moved, rel=1e-10)
        total = float((reference.weights[task] - reference.weights[0]).norm())
        assert solution.distance_from_initialisation(task) == pytest.approx(total, rel=1e-10)
        for earlier in range(task):
            between = float((reference.weights[task] - reference.weights[earlier]).norm())
            assert solution.distance_between(earlier, task) == pytest.approx(between, rel=1e-9)


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_distance_from_initialisation_by_effective_kernels(problem, rule):
    """||w_T - w_0||^2 = sum_jk a_j^T kappa_max(j,k)(X_j, X_k) a_k."""
    solution = problem.solve(rule=rule)
    total = 0.0
    for j in range(1, 5):
        for k in range(1, 5):
            kappa = solution.effective_kernel(max(j, k))
            cross = kappa.gram(problem.tasks[j - 1][0], problem.tasks[k - 1][0])
            total += float(solution.coefficients(j) @ cross @ solution.coefficients(k))
    assert solution.distance_from_initialisation() ** 2 == pytest.approx(total, rel=1e-9)


def test_pythagoras_for_ogd_with_full_memory_only(problem):
    ogd, sgd = problem.solve(rule="ogd"), problem.solve(rule="sgd")
    squares = sum(ogd.distance(task) ** 2 for task in range(1, 5))
    assert ogd.distance_from_initialisation() ** 2 == pytest.approx(squares, rel=1e-10)
    squares = sum(sgd.distance(task) ** 2 for task in range(1, 5))
    assert abs(sgd.distance_from_initialisation() ** 2 / squares - 1) > 1e-2


def test_the_base_kernel_gives_the_wrong_distance_for_ogd(problem):
    """The corollary prints kappa without an index; with k in place of kappa_t it is off by tens of percent."""
    solution = problem.solve(rule="ogd")
    errors = []
    for task in (2, 3, 4):
        kernel = problem.kernel(problem.tasks[task - 1][0], problem.tasks[task - 1][0])
        inverse = torch.linalg.inv(kernel + 0.05 * torch.eye(len(kernel)).double())
        r = solution.residual(task)
        errors.append(abs(float(r @ inverse @ kernel @ inverse @ r) / solution.distance(task) ** 2 - 1))
    assert max(errors) > 0.1


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
@pytest.mark.parametrize("memory", [None, 3])
def test_radius_bound(problem, rule, memory):
    for ridge in (0.0, 0.05, 5.0):
        solution = problem.solve(rule=rule, ridge=ridge, memory=memory)
        for after in range(5):
            assert solution.distance_from_initialisation(after) <= radius_bound(solution, after) * (1 + 1e-9)


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_optimal_value_identity(problem, rule):
    """lam S_t = ||f_t(X_t) - y_t||^2 + lam ||w_t - w_{t-1}||^2."""
    solution = problem.solve(rule=rule)
    for task in range(1, 5):
        error = solution.train_outputs(task, after=task) - solution.task_targets(task)
        value = float(error.square().sum()) + 0.05 * solution.distance(task) ** 2
        assert 0.05 * solution.dissimilarity(task) == pytest.approx(value, rel=1e-11)


def test_remark_2_needs_the_matrix_of_the_second_task():
    """||w(Q) - w(P)|| = sqrt(r^T H_Q^-1 r); the remark prints H_P^-1."""
    generator = torch.Generator().manual_seed(1)
    x_p, x_q = (torch.randn(n, 6, generator=generator, dtype=torch.float64) for n in (8, 8))
    y_p, y_q = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (8, 8))
    kernel = TwoLayerNTK()
    h_p, h_q, h_qp = kernel.gram(x_p), kernel.gram(x_q), kernel.gram(x_q, x_p)
    r = y_q - h_qp @ torch.linalg.solve(h_p, y_p)
    expected = float(r @ torch.linalg.solve(h_q, r)) ** 0.5
    printed = float(r @ torch.linalg.solve(h_p, r)) ** 0.5
    assert transfer_distance(kernel, (x_p, y_p), (x_q, y_q)) == pytest.approx(expected, rel=1e-9)
    assert abs(printed / expected - 1) > 0.02
    # Explicit features of the same kernel: the distance the weights really moved.
    x = torch.cat([x_p, x_q])
    values, vectors = torch.linalg.eigh(kernel.gram(x))
    phi = vectors * values.clamp_min(0).sqrt()
    w = torch.linalg.pinv(phi[:8]) @ y_p
    step = torch.linalg.pinv(phi[8:]) @ (y_q - phi[8:] @ w)
    assert float(step.norm()) == pytest.approx(expected, rel=1e-8)
    sized = (x_q[:5], y_q[:5])
    assert transfer_distance(kernel, (x_p, y_p), sized) == pytest.approx(
        solve_stream(kernel, [(x_p, y_p), sized], rule="sgd").distance(2)
    )
