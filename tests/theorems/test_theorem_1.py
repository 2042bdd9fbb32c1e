"""Theorem 1 (thm:conv) and Remark 1 (cor:recursion): the closed form is the limit of descent."""

from __future__ import annotations

import pytest
import torch

from orthocl.theory import contraction, outputs_during, solve_stream


def descend(problem, rule: str, task: int, start, projector, ridge_factor: float, rate: float, steps: int):
    """Full-batch (projected) descent on ||phi dw - r||^2 + ridge_factor ||dw||^2 from dw = 0; all iterates."""
    x, y = problem.tasks[task - 1]
    phi = problem.phi(x)
    residual = y - problem.f0(x) - phi @ start
    step = torch.zeros_like(start)
    iterates = [step]
    for _ in range(steps):
        gradient = 2 * phi.T @ (phi @ step - residual) + 2 * ridge_factor * step
        step = step - rate * (gradient if rule == "sgd" else projector @ gradient)
        iterates.append(step)
    return iterates


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_closed_form_is_the_limit_of_projected_descent(problem, rule):
    solution, reference = problem.solve(rule=rule), problem.reference(rule)
    start = reference.weights[0]
    for task in range(1, 5):
        rate = 0.99 * solution.max_learning_rate(task)
        steps = int(30 / (1 - contraction(solution, task, rate))) + 1
        iterates = descend(
            problem, rule, task, start, reference.projectors[task - 1], 0.05, rate, min(steps, 20000)
        )
        start = start + iterates[-1]
        assert (start - reference.weights[task]).abs().max() < 1e-9
        outputs = problem.f0(problem.probes) + problem.phi(problem.probes) @ start
        assert (outputs - solution.predict(problem.probes, after=task)).abs().max() < 1e-9


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_descent_follows_the_predicted_outputs_step_by_step(problem, rule):
    solution, reference = problem.solve(rule=rule), problem.reference(rule)
    for task in (1, 3):
        rate = 0.9 * solution.max_learning_rate(task)
        start = reference.weights[task - 1]
        iterates = descend(problem, rule, task, start, reference.projectors[task - 1], 0.05, rate, 40)
        counts = [0, 1, 2, 7, 40]
        predicted = outputs_during(solution, task, counts, rate, x=problem.probes)
        for count, expected in zip(counts, predicted, strict=True):
            weights = start + iterates[count]
            outputs = problem.f0(problem.probes) + problem.phi(problem.probes) @ weights
            assert (outputs - expected).abs().max() < 1e-10


def test_error_shrinks_at_least_as_fast_as_the_contraction(problem):
    solution, reference = problem.solve(rule="ogd"), problem.reference("ogd")
    for task in range(1, 5):
        rate = 0.99 * solution.max_learning_rate(task)
        factor = contraction(solution, task, rate)
        goal = reference.weights[task] - reference.weights[task - 1]
        iterates = descend(
            problem, "ogd", task, reference.weights[task - 1], reference.projectors[task - 1], 0.05, rate, 200
        )
        for count, step in enumerate(iterates):
            assert (step - goal).norm() <= factor**count * goal.norm() * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(("share", "converges"), [(0.99, True), (1.01, False)])
def test_learning_rate_condition_is_sharp(problem, share, converges):
    solution, reference = problem.solve(rule="sgd"), problem.reference("sgd")
    rate = share * solution.max_learning_rate(1)
    iterates = descend(problem, "sgd", 1, reference.weights[0], reference.projectors[0], 0.05, rate, 4000)
    goal = reference.weights[1]
    assert ((iterates[-1] - goal).norm() < goal.norm()) == converges
    assert (contraction(solution, 1, rate) < 1) == converges


def test_appendix_objective_solves_with_half_the_ridge(problem):
    """The appendix writes lam/2 ||dw||^2 without a half on the fit: its minimiser has lam/2, not lam."""
    reference = problem.reference("ogd")
    rate = 0.9 * problem.solve(rule="ogd").max_learning_rate(1)
    limit = descend(problem, "ogd", 1, reference.weights[0], reference.projectors[0], 0.025, rate, 20000)[-1]
    assert (limit - problem.reference("ogd", ridge=0.025).weights[1]).abs().max() < 1e-9
    assert (limit - reference.weights[1]).norm() > 1e-2


@pytest.mark.parametrize("ridge", [0.05, 0.0])
@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_kernel_form_equals_feature_form(problem, rule, ridge):
    solution, reference = problem.solve(rule=rule, ridge=ridge), problem.reference(rule, ridge=ridge)
    phi, f0 = problem.phi(problem.probes), problem.f0(problem.probes)
    for after in range(5):
        expected = reference.predict(phi, f0, after)
        assert (solution.predict(problem.probes, after=after) - expected).abs().max() < 1e-9
    for task in range(1, 5):
        kappa = phi @ reference.projectors[task - 1] @ phi.T
        assert (solution.effective_kernel(task).gram(problem.probes) - kappa).abs().max() < 1e-12


def test_partial_and_rank_deficient_memories(problem, feature_form):
    x, y = problem.tasks[0]
    doubled = [(torch.cat([x, x[:5]]), torch.cat([y, y[:5]])), *problem.tasks[1:]]
    kept = [torch.arange(14), torch.arange(4), torch.tensor([0, 0, 3]), torch.arange(3)]
    initial = {"initial": lambda points: problem.f0(points.inputs)}
    solution = solve_stream(problem.kernel, doubled, rule="ogd", ridge=0.05, memory=kept, **initial)
    reference = feature_form(
        [problem.phi(x) for x, _ in doubled],
        [y for _, y in doubled],
        [problem.f0(x) for x, _ in doubled],
        "ogd",
        0.05,
        kept,
    )
    assert solution.rank(2) == 12  # 14 rows, two of them seen before
    for after in range(1, 5):
        expected = reference.predict(problem.phi(problem.probes), problem.f0(problem.probes), after)
        assert (solution.predict(problem.probes, after=after) - expected).abs().max() < 1e-9


def test_effective_kernel_of_the_first_task_is_the_kernel(problem):
    """The printed projector off E_1 + .. + E_tau leaves the first task with a zero kernel: nothing is learnt."""
    solution = problem.solve(rule="ogd")
    plain = problem.kernel(problem.probes, problem.probes)
    assert torch.equal(solution.effective_kernel(1).gram(problem.probes), (plain + plain.T) / 2)
    phi = problem.phi(problem.tasks[0][0])
    printed = phi @ problem.reference("ogd").projectors[1] @ phi.T
    assert printed.abs().max() < 1e-12


def test_projecting_off_the_last_task_only_forgets_the_others(problem, off_span):
    """Printed update rule: the complement of E_{T-1}. The sum of all earlier spaces is needed."""
    weights, drift = torch.zeros(385, dtype=torch.float64), []
    after = []
    for task, (x, y) in enumerate(problem.tasks):
        phi = problem.phi(x)
        projector = off_span(problem.phi(problem.tasks[task - 1][0]) if task else phi[:0])
        z = phi @ projector
        residual = y - problem.f0(x) - phi @ weights
        weights = weights + z.T @ torch.linalg.solve(z @ z.T + 0.05 * torch.eye(len(z)).double(), residual)
        after.append(weights)
    for task in range(3):
        phi = problem.phi(problem.tasks[task][0])
        drift.append(float((phi @ (weights - after[task])).abs().max()))
    assert drift[0] > 0.05
    assert drift[1] > 0.05
    assert drift[2] < 1e-12


def test_printed_constraint_forces_the_step_into_the_span(problem):
    """V (w - w_prev) = 0 with V the projector on the complement leaves only steps inside the memory's span."""
    reference = problem.reference("ogd")
    first, (x, y) = problem.phi(problem.tasks[0][0]), problem.tasks[1]
    inside = torch.eye(385, dtype=torch.float64) - reference.projectors[1]
    z = problem.phi(x) @ inside
    residual = y - problem.f0(x) - problem.phi(x) @ reference.weights[1]
    step = z.T @ torch.linalg.solve(z @ z.T + 0.05 * torch.eye(len(z)).double(), residual)
    assert (first @ step).abs().max() > 0.05
    assert (first @ (reference.weights[2] - reference.weights[1])).abs().max() < 1e-12


def test_projection_must_have_orthonormal_rows(problem):
    """T -> A T gives another kernel phi^T T^T T phi, so Theorem 1 and Corollary 1 need T orthonormal."""
    reference = problem.reference("ogd")
    x, y = problem.tasks[1]
    phi = problem.phi(x)
    residual = y - problem.f0(x) - phi @ reference.weights[1]
    values, vectors = torch.linalg.eigh(reference.projectors[1])
    rows = vectors[:, values > 0.5].T
    generator = torch.Generator().manual_seed(0)
    skewed = (
        torch.eye(len(rows)).double()
        + 0.5 * torch.randn(len(rows), len(rows), generator=generator, dtype=torch.float64) / len(rows) ** 0.5
    ) @ rows
    true = reference.weights[2] - reference.weights[1]
    for matrix, tolerance, equal in ((rows, 1e-9, True), (skewed, 1e-2, False)):
        z = phi @ matrix.T
        coefficients = torch.linalg.solve(z @ z.T + 0.05 * torch.eye(len(z)).double(), residual)
        step = matrix.T @ z.T @ coefficients
        corollary = float(coefficients @ z @ z.T @ coefficients)
        assert ((step - true).norm() < tolerance) == equal
        assert (abs(corollary / float(step @ step) - 1) < tolerance) == equal


def test_minibatches_at_a_constant_rate_do_not_reach_the_limit(problem):
    """The "SGD" of the theorem is full-batch descent."""
    x, y = problem.tasks[0]
    phi, goal = problem.phi(x), problem.reference("sgd").weights[1]
    residual = y - problem.f0(x)
    generator = torch.Generator().manual_seed(0)
    rate = 0.5 * problem.solve(rule="sgd").max_learning_rate(1)
    step = torch.zeros_like(goal)
    for _ in range(20000):
        batch = torch.randperm(len(x), generator=generator)[:3]
        part = phi[batch]
        gradient = 4 * 2 * part.T @ (part @ step - residual[batch]) + 2 * 0.05 * step
        step = step - rate / 4 * gradient
    assert (step - goal).norm() / goal.norm() > 1e-3


def test_remark_1_needs_the_initial_function(problem):
    solution = problem.solve(rule="ogd")
    total = sum(solution.increment(problem.probes, task) for task in range(1, 5))
    f0 = problem.f0(problem.probes)
    final = solution.predict(problem.probes)
    assert (final - f0 - total).abs().max() < 1e-10
    assert (final - total).abs().max() > 0.5 * f0.abs().max() > 1e-2


def test_identical_tasks_have_a_residual_unless_there_is_no_ridge(problem):
    x, y = problem.tasks[0]
    r = y - problem.f0(x)
    initial = {"initial": lambda points: problem.f0(points.inputs)}
    kernel = problem.kernel(x, x)
    ridged = torch.linalg.inv(kernel + 0.1 * torch.eye(len(x)).double())
    twice = [(x, y), (x, y)]
    sgd = solve_stream(problem.kernel, twice, rule="sgd", ridge=0.1, **initial)
    assert torch.allclose(sgd.residual(2), 0.1 * ridged @ r, atol=1e-12)
    assert sgd.dissimilarity(2) == pytest.approx(float(0.01 * r @ ridged @ ridged @ ridged @ r), rel=1e-8)
    ogd = solve_stream(problem.kernel, twice, rule="ogd", ridge=0.1, **initial)
    assert ogd.dissimilarity(2) == pytest.approx(float(0.1 * (ridged @ r) @ (ridged @ r)), rel=1e-8)
    assert ogd.dissimilarity(2) > 1e-3
    assert ogd.effective_trace(2) == 0
    for rule in ("sgd", "ogd"):
        plain = solve_stream(problem.kernel, twice, rule=rule, ridge=0.0, **initial)
        assert plain.dissimilarity(2) < 1e-12
        assert plain.residual(2).abs().max() < 1e-8


def test_ogd_without_ridge_is_the_joint_minimum_norm_interpolant(problem):
    solution = problem.solve(rule="ogd", ridge=0.0)
    x, y = torch.cat([x for x, _ in problem.tasks]), torch.cat([y for _, y in problem.tasks])
    joint = torch.linalg.pinv(problem.phi(x)) @ (y - problem.f0(x))
    outputs = problem.f0(problem.probes) + problem.phi(problem.probes) @ joint
    assert (solution.predict(problem.probes) - outputs).abs().max() < 1e-8
    total = sum(solution.dissimilarity(task) for task in range(1, 5))
    assert total == pytest.approx(float(joint @ joint), rel=1e-9)
    initial = {"initial": lambda points: problem.f0(points.inputs)}
    other = solve_stream(problem.kernel, problem.tasks[::-1], rule="ogd", ridge=0.0, **initial)
    assert sum(other.dissimilarity(task) for task in range(1, 5)) == pytest.approx(total, rel=1e-9)
    assert (other.predict(problem.probes) - outputs).abs().max() < 1e-8
    forward = problem.solve(rule="ogd", ridge=0.05).predict(problem.probes)
    backward = solve_stream(problem.kernel, problem.tasks[::-1], rule="ogd", ridge=0.05, **initial)
    assert (forward - backward.predict(problem.probes)).abs().max() > 1e-2
