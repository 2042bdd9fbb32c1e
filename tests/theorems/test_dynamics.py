"""Lemmas lem:output-dyn-gen, lem:train-target-conv and lem:ogd-train-zero: training without ridge."""

from __future__ import annotations

import pytest
import torch

from orthocl.theory import contraction, empirical_loss, limit_training_loss, outputs_during, solve_stream


def linear(x, z):
    return x @ z.T


def test_outputs_without_ridge_have_a_plus_sign_and_a_factor_two(problem):
    solution = problem.solve(rule="ogd", ridge=0.0)
    task = 3
    kernel, r = solution.effective_gram(task), solution.residual(task)
    rate = 0.9 * solution.max_learning_rate(task)
    identity = torch.eye(len(kernel), dtype=torch.float64)
    before = solution.train_outputs(task, after=task - 1)
    for steps in (0, 1, 5, 30):
        u = outputs_during(solution, task, steps, rate) - before
        right = r + torch.linalg.matrix_power(identity - 2 * rate * kernel, steps) @ (0 - r)
        printed = r - torch.linalg.matrix_power(identity - rate * kernel, steps) @ (0 - r)
        assert (u - right).abs().max() < 1e-12
        assert (u - printed).abs().max() > 0.1


def test_half_loss_has_the_printed_factor(problem):
    solution = problem.solve(rule="ogd", ridge=0.0)
    kernel, r = solution.effective_gram(1), solution.residual(1)
    rate = 1.5 * solution.max_learning_rate(1)  # stable: the half loss allows twice the rate
    identity = torch.eye(len(kernel), dtype=torch.float64)
    u = outputs_during(solution, 1, 20, rate, half=True) - solution.train_outputs(1, after=0)
    assert (u - r + torch.linalg.matrix_power(identity - rate * kernel, 20) @ r).abs().max() < 1e-12


def test_convergence_fails_at_equality_and_needs_a_positive_kernel():
    """eta = 1 / ||K|| gives the eigenvalue -1 for the printed loss: the error never shrinks there."""
    x, y = torch.tensor([[1.0]]), torch.tensor([1.0])
    solution = solve_stream(linear, [(x, y)], rule="ogd")
    rate = solution.max_learning_rate(1)
    assert contraction(solution, 1, rate) == pytest.approx(1.0)
    errors = (outputs_during(solution, 1, [1, 2, 101, 102], rate) - 1).abs().flatten()
    assert errors.tolist() == pytest.approx([1.0, 1.0, 1.0, 1.0])
    assert float((outputs_during(solution, 1, 2000, 0.99 * rate) - 1).abs()) < 1e-12


@pytest.mark.parametrize(("rule", "expected"), [("ogd", 12.0), ("sgd", 6.0)])
def test_limit_loss_is_the_part_of_the_residual_that_no_kernel_sees(rule, expected):
    """Task 2 repeats three inputs with opposite labels (OGD cannot move them: 3 x 2^2), and twice each with
    both labels under SGD (the mean is the best: 6 x 1)."""
    x, y = torch.eye(3, 5), torch.ones(3)
    second = (x, -y) if rule == "ogd" else (torch.cat([x, x]), torch.cat([y, -y]))
    tasks = [(x, y), second]
    solution = solve_stream(linear, tasks, rule=rule)
    assert limit_training_loss(solution, 2) == pytest.approx(expected, abs=1e-9)
    rate = 0.9 * min(1.0, solution.max_learning_rate(2))
    outputs = outputs_during(solution, 2, 5000, rate)
    assert float((outputs - tasks[1][1]).square().sum()) == pytest.approx(expected, abs=1e-9)


def test_past_errors_are_zero_without_ridge_for_positive_kernels_and_full_memory(problem):
    solution = problem.solve(rule="ogd", ridge=0.0)
    for task in range(1, 5):
        assert empirical_loss(solution, task) < 1e-15
    partial = problem.solve(rule="ogd", ridge=0.0, memory=3)
    assert empirical_loss(partial, 1) > 1e-4


def test_other_points_do_not_move_when_the_memory_fills_the_space():
    """Directions in which the kernel vanishes never reach the function, at other points neither."""
    generator = torch.Generator().manual_seed(0)
    tasks = [
        (
            torch.randn(12, 4, generator=generator, dtype=torch.float64),
            torch.randn(12, generator=generator, dtype=torch.float64),
        )
        for _ in range(2)
    ]
    solution = solve_stream(lambda x, z: x @ z.T, tasks, rule="ogd", ridge=1e-12)
    probes = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    moved = outputs_during(solution, 2, 10_000, 0.01, x=probes) - solution.predict(probes, after=1)
    assert moved.abs().max() < 1e-12
