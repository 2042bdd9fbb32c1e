"""Proposition 1 as numbers: against explicit gradients of a linear model."""

from __future__ import annotations

import pytest
import torch

from orthocl.theory import EmpiricalNTK, forgetting_drift, solve_stream
from orthocl.theory.no_forgetting import gradient_alignment

GENERATOR = torch.Generator().manual_seed(0)
TASKS = [
    (
        torch.randn(3, 8, generator=GENERATOR, dtype=torch.float64),
        torch.randn(3, 2, generator=GENERATOR, dtype=torch.float64),
    )
    for _ in range(3)
]


def linear(x, z):
    return x @ z.T


@pytest.mark.parametrize("memory", [None, 2])
def test_alignment_is_that_of_explicit_gradients(memory):
    solution = solve_stream(linear, TASKS, rule="ogd", ridge=0.4, memory=memory)
    kept = memory or 3
    eye = torch.eye(8, dtype=torch.float64)
    for task in (2, 3):
        weights = solution.predict(eye, after=task - 1)
        seen = torch.cat([x[:kept] for x, _ in TASKS[: task - 1]])
        free = eye - torch.linalg.pinv(seen) @ seen
        x, y = TASKS[task - 1]
        gradient = 2 * x.T @ (x @ weights - y)
        for found in gradient_alignment(solution, task):
            old, wanted = (part[:kept] for part in TASKS[found.task - 1])
            reference = 2 * old.T @ (old @ weights - wanted)
            step = free @ gradient
            agem = gradient - (gradient * reference).sum() / reference.square().sum() * reference

            def cosine(a, b):
                return float((a * b).sum() / (a.norm() * b.norm()))

            assert found.memory_gradient == pytest.approx(float(reference.norm()), rel=1e-9)
            assert found.plain == pytest.approx(cosine(reference, gradient), rel=1e-9)
            assert found.projected == pytest.approx(0.0, abs=1e-9)
            assert found.steps == pytest.approx(cosine(step, agem), rel=1e-9)


def test_another_loss_is_differentiated_as_given():
    solution = solve_stream(linear, TASKS, rule="ogd", ridge=0.4)
    twice = gradient_alignment(solution, 2, lambda u, y: 6 * (u - y))
    once = gradient_alignment(solution, 2)
    assert twice[0].memory_gradient == pytest.approx(3 * once[0].memory_gradient)
    assert twice[0].plain == pytest.approx(once[0].plain)


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_drift_by_predictions(rule):
    """Of three samples two are remembered: they stay, the third moves; under SGD nothing is protected."""
    solution = solve_stream(linear, TASKS, rule=rule, memory=2)
    found = forgetting_drift(solution)
    assert [each.task for each in found] == [1, 2]
    for each in found:
        x = TASKS[each.task - 1][0]
        moved = (solution.predict(x) - solution.predict(x, after=each.task)).abs()
        kept = moved[:2].max() if rule == "ogd" else torch.tensor(float("nan"))
        others = moved[2:].max() if rule == "ogd" else moved.max()
        assert each.remembered == pytest.approx(float(kept), abs=1e-12, nan_ok=True)
        assert each.others == pytest.approx(float(others))
        assert float(others) > 1e-3
        if rule == "ogd":
            assert each.remembered < 1e-10
    assert forgetting_drift(solution, after=1) == []


def test_alignment_of_a_network_with_all_its_outputs():
    """Every logit is a point: the gradients are those of autograd, samples that are remembered in part count whole."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3).double()
    generator = torch.Generator().manual_seed(1)
    tasks = [
        (
            torch.randn(5, 4, generator=generator, dtype=torch.float64),
            torch.randn(5, 3, generator=generator, dtype=torch.float64),
        )
        for _ in range(2)
    ]
    kernel = EmpiricalNTK(model, outputs="all")
    solution = solve_stream(kernel, tasks, rule="ogd", ridge=0.4, memory=2)
    (found,) = gradient_alignment(solution, 2)
    old, wanted = (part[:2] for part in tasks[0])
    slope = 2 * (solution.predict(old, after=1) - wanted)
    reference = kernel.features(old).T @ slope.flatten()
    x, y = tasks[1]
    gradient = kernel.features(x).T @ (2 * (solution.predict(x, after=1) - y)).flatten()
    assert found.memory_gradient == pytest.approx(float(reference.norm()), rel=1e-9)
    assert found.plain == pytest.approx(
        float(reference @ gradient / reference.norm() / gradient.norm()), rel=1e-9
    )
    assert found.projected == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("unit", [1e-6, 1e-2, 1e6])
def test_cosines_have_no_unit(unit):
    """Targets in another unit: gradients grow with it, their angles do not change."""
    plain = gradient_alignment(solve_stream(linear, TASKS, rule="ogd", ridge=0.4, memory=2), 3)
    scaled = [(x, unit * y) for x, y in TASKS]
    found = gradient_alignment(solve_stream(linear, scaled, rule="ogd", ridge=0.4, memory=2), 3)
    for one, other in zip(plain, found, strict=True):
        assert other.memory_gradient == pytest.approx(unit * one.memory_gradient, rel=1e-9)
        assert (other.plain, other.steps) == pytest.approx((one.plain, one.steps), rel=1e-9)
        assert abs(one.plain) > 1e-3
        assert abs(one.steps) > 1e-3
