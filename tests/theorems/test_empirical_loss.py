"""Lemmas lem:ogd-train-gen-bounds, lem:sgd-train-gen-bounds and lem:bound-kernel-norm: error on training points."""

from __future__ import annotations

import itertools

import pytest
import torch

from orthocl.theory import empirical_loss, empirical_loss_bound, forgetting_terms, solve_stream
from orthocl.theory.empirical_loss import fit_value, printed_empirical_bound


def linear(x, z):
    return x @ z.T


def random_problem(seed: int):
    """A small random-feature problem: three tasks, labels +-1, ridge from tiny to large."""
    generator = torch.Generator().manual_seed(seed)
    features = int(torch.randint(2, 12, (1,), generator=generator))
    scale = 10 ** float(torch.rand(1, generator=generator) * 2 - 1.5)
    tasks = []
    for _ in range(3):
        count = int(torch.randint(1, 8, (1,), generator=generator))
        x = scale * torch.randn(count, features, generator=generator, dtype=torch.float64)
        tasks.append((x, (torch.rand(count, generator=generator) < 0.5).double() * 2 - 1))
    ridge = 10 ** float(torch.rand(1, generator=generator) * 4 - 3)
    return tasks, ridge


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_exact_loss_of_every_task_at_every_time(problem, rule):
    """(1/n) || -lam a_t + sum_k kappa_k(X_t, X_k) a_k ||^2, with effective kernels evaluated one by one."""
    solution = problem.solve(rule=rule, memory=6)
    for task in range(1, 5):
        error = -0.05 * solution.coefficients(task)
        for later in range(task + 1, 5):
            kappa = solution.effective_kernel(later)
            cross = kappa.gram(problem.tasks[task - 1][0], problem.tasks[later - 1][0])
            increment = cross @ solution.coefficients(later)
            error = error + increment
            assert forgetting_terms(solution, task)[later] == pytest.approx(
                float(increment.square().sum()), abs=1e-10, rel=1e-9
            )
        assert empirical_loss(solution, task) == pytest.approx(float(error.square().mean()), rel=1e-9)


def test_corrected_bounds_hold_and_printed_ones_fail():
    printed_failures = {"sgd": 0, "ogd": 0}
    for seed in range(200):
        tasks, ridge = random_problem(seed)
        for rule in ("sgd", "ogd"):
            solution = solve_stream(linear, tasks, rule=rule, ridge=ridge)
            for task in (1, 2, 3):
                measured = empirical_loss(solution, task)
                assert measured <= empirical_loss_bound(solution, task) * (1 + 1e-9) + 1e-12
                printed_failures[rule] += (
                    measured > printed_empirical_bound(solution, task) * (1 + 1e-9) + 1e-12
                )
    assert printed_failures["sgd"] > 100
    assert printed_failures["ogd"] > 100


def test_partial_memory_is_covered_by_the_same_bound():
    for seed in range(100):
        tasks, ridge = random_problem(seed)
        solution = solve_stream(linear, tasks, rule="ogd", ridge=ridge, memory=2)
        for task in (1, 2, 3):
            bound = empirical_loss_bound(solution, task)
            assert empirical_loss(solution, task) <= bound * (1 + 1e-9) + 1e-12


def test_counterexample_for_ogd():
    """K = .1, lam = .1, r = 1: the loss is .25, the printed bound .05, the corrected one .5."""
    tasks = [(torch.tensor([[0.1**0.5]], dtype=torch.float64), torch.tensor([1.0]))]
    solution = solve_stream(linear, tasks, rule="ogd", ridge=0.1)
    assert empirical_loss(solution, 1) == pytest.approx(0.25, abs=1e-12)
    assert printed_empirical_bound(solution, 1) == pytest.approx(0.05, abs=1e-12)
    assert empirical_loss_bound(solution, 1) == pytest.approx(0.5, abs=1e-12)


def test_printed_ogd_bound_holds_for_all_residuals_iff_the_spectrum_is_above_one():
    generator = torch.Generator().manual_seed(0)
    for smallest, safe in ((1.01, True), (0.9, False)):
        ridge = 0.3
        values = torch.tensor([smallest - ridge, 2.0, 3.0], dtype=torch.float64)
        basis = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))[0]
        x = basis * values.sqrt()
        residuals = [basis[:, 0], *torch.randn(50, 3, generator=generator, dtype=torch.float64)]
        holds = []
        for r in residuals:
            solution = solve_stream(linear, [(x, r)], rule="ogd", ridge=ridge)
            holds.append(empirical_loss(solution, 1) <= printed_empirical_bound(solution, 1) * (1 + 1e-9))
        assert all(holds) == safe


def test_counterexample_for_sgd():
    """x = 1, y = 1 then -1, lam = 1: 1.5625 > 1.0625."""
    x = torch.ones(1, 1)
    solution = solve_stream(
        linear, [(x, torch.tensor([1.0])), (x, torch.tensor([-1.0]))], rule="sgd", ridge=1.0
    )
    assert empirical_loss(solution, 1) == pytest.approx(1.5625, abs=1e-12)
    assert printed_empirical_bound(solution, 1) == pytest.approx(1.0625, abs=1e-12)
    assert empirical_loss_bound(solution, 1) >= 1.5625


def test_norm_of_the_increment_is_below_the_dissimilarity_for_singular_kernels_too():
    for seed in range(100):
        tasks, ridge = random_problem(seed)
        for rule in ("sgd", "ogd"):
            solution = solve_stream(linear, tasks, rule=rule, ridge=ridge)
            for task in (1, 2, 3):
                assert solution.distance(task) ** 2 <= solution.dissimilarity(task) * (1 + 1e-9) + 1e-12


def test_ogd_is_always_at_least_as_dissimilar_as_sgd_on_the_second_task():
    """r_2 is the same and kappa_2 <= k, so S_2(OGD) >= S_2(SGD): "the bound for OGD is tighter" fails there."""
    larger = 0
    for seed in range(300):
        tasks, ridge = random_problem(seed)
        pair = {r: solve_stream(linear, tasks[:2], rule=r, ridge=ridge) for r in ("sgd", "ogd")}
        assert pair["ogd"].dissimilarity(2) >= pair["sgd"].dissimilarity(2) * (1 - 1e-9)
        larger += pair["ogd"].dissimilarity(2) > pair["sgd"].dissimilarity(2) * (1 + 1e-6)
    assert larger > 100


def test_without_ridge_the_fit_is_what_no_function_reaches():
    """The same input with targets 0 and 2: (0 - 1)^2 + (2 - 1)^2 remain; with a ridge, lam S."""
    x = torch.ones(2, 1, dtype=torch.float64)
    task = (x, torch.tensor([0.0, 2.0], dtype=torch.float64))
    exact = solve_stream(lambda a, b: a @ b.T, [task], ridge=0.0)
    assert fit_value(exact, 1) == pytest.approx(2.0)
    assert empirical_loss(exact, 1) == pytest.approx(1.0)
    assert empirical_loss_bound(exact, 1) == pytest.approx(1.0)
    # f = w x: min (w - 0)^2 + (w - 2)^2 + w^2 is at w = 2/3, of value 8/3.
    ridge = solve_stream(lambda a, b: a @ b.T, [task], ridge=1.0)
    assert fit_value(ridge, 1) == pytest.approx(8 / 3)


def test_the_printed_bound_by_hand():
    """(lam^2 / n_t) S_t, plus the changes by later tasks divided by the samples of the last one, under SGD."""
    generator = torch.Generator().manual_seed(0)
    tasks = [
        (torch.randn(n, 6, generator=generator, dtype=torch.float64), torch.randn(n, dtype=torch.float64))
        for n in (3, 4, 5)
    ]
    for rule in ("sgd", "ogd"):
        solution = solve_stream(lambda a, b: a @ b.T, tasks, rule=rule, ridge=0.5)
        x = tasks[0][0]
        outputs = [solution.predict(x, after) for after in (1, 2, 3)]
        changes = sum(float((b - a).square().sum()) for a, b in itertools.pairwise(outputs))
        expected = 0.25 / 3 * solution.dissimilarity(1) + (changes / 5 if rule == "sgd" else 0.0)
        assert printed_empirical_bound(solution, 1) == pytest.approx(expected)
        assert sum(forgetting_terms(solution, 1).values()) == pytest.approx(changes, abs=1e-12)
