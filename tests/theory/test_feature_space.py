"""Near-duplicate inputs: the feature form against 60 digits, and what the kernel form says of itself."""

from __future__ import annotations

import warnings

import mpmath
import pytest
import torch
from torch import nn

from orthocl.errors import SettingsError
from orthocl.theory import EmpiricalNTK, solve_in_feature_space, solve_stream


def make_tasks(apart: float):
    """Two tasks; the second repeats the inputs of the first, moved by a relative `apart`, with other targets."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    moved = x + apart * torch.randn(3, 6, generator=generator, dtype=torch.float64)
    y = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    return [(x, y), (moved, torch.tensor([-1.0, 0.5, 1.0], dtype=torch.float64))], torch.randn(
        4, 6, generator=generator, dtype=torch.float64
    )


def reference(tasks, probes, ridge, rule):
    """Theorem 1 for f = w.x with 60 digits, by normal equations (whose condition number is squared: no matter)."""
    with mpmath.workdps(60):
        weights = mpmath.zeros(6, 1)
        projector = mpmath.eye(6)
        for x, y in tasks:
            rows = mpmath.matrix(x.tolist()) * projector
            residual = mpmath.matrix(y.tolist()) - mpmath.matrix(x.tolist()) * weights
            gram = rows * rows.T + mpmath.mpf(ridge) * mpmath.eye(len(y))
            weights = weights + rows.T * mpmath.lu_solve(gram, residual)
            if rule == "ogd":
                memory = mpmath.matrix(x.tolist())
                inverse = mpmath.inverse(memory * memory.T)
                projector = projector - memory.T * inverse * memory
        return torch.tensor([float(v) for v in mpmath.matrix(probes.tolist()) * weights], dtype=torch.float64)


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
@pytest.mark.parametrize("ridge", [0.0, 0.01])
@pytest.mark.parametrize(("apart", "allowed"), [(1e-2, 1e-11), (1e-4, 1e-9), (1e-6, 1e-6)])
def test_near_duplicates_against_60_digits(rule, ridge, apart, allowed):
    tasks, probes = make_tasks(apart)
    model = nn.Linear(6, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    expected = reference(tasks, probes, ridge, rule)
    found = solve_in_feature_space(EmpiricalNTK(model), tasks, rule=rule, ridge=ridge).predict(probes)
    assert float((found - expected).abs().max() / expected.abs().max()) < allowed


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_the_smallest_direction_is_a_share_of_the_longest_tangent(unit):
    """Tangents of f = w.x are the inputs: lengths 3 and 1, then 2 and 1.5."""
    first, second = torch.diag(torch.tensor([3.0, 1.0])), torch.diag(torch.tensor([2.0, 1.5]))
    tasks = [(unit * each.double(), torch.ones(2, dtype=torch.float64)) for each in (first, second)]
    model = nn.Linear(2, 1, bias=False).double()
    steps = solve_in_feature_space(EmpiricalNTK(model), tasks, rule="sgd").steps
    assert [step.smallest for step in steps] == pytest.approx([1 / 3, 1.5 / 3])


def test_a_negative_ridge_is_refused():
    with pytest.raises(SettingsError, match="ridge of zero or more"):
        solve_in_feature_space(EmpiricalNTK(nn.Linear(6, 1, bias=False)), make_tasks(0.1)[0], ridge=-1.0)


def test_the_kernel_form_reports_what_it_lost():
    tasks, probes = make_tasks(1e-7)
    kernel = EmpiricalNTK(nn.Linear(6, 1, bias=False).double())
    third = (
        torch.randn(2, 6, generator=torch.Generator().manual_seed(8), dtype=torch.float64),
        torch.ones(2),
    )
    solution = solve_stream(kernel, [*tasks, third], rule="ogd")
    report = solution.conditioning()
    assert report.dropped == 3  # the moved inputs count as repeated
    assert report.unfitted[1] > 0  # and their new targets cannot be fitted
    far = solve_stream(kernel, [*make_tasks(0.5)[0], third], rule="ogd").conditioning()
    assert far.dropped == 0
    assert max(far.errors[:2]) < 1e-11
    assert far.errors[2] == 1.0  # the memory fills the space: what is left is rounding, whatever it should be
    near = solve_stream(kernel, [*make_tasks(1e-4)[0], third], rule="ogd").conditioning()
    assert near.dropped == 0
    assert near.error > 1e-9
    assert solution.predict(probes).isfinite().all()


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
@pytest.mark.parametrize("ridge", [0.0, 0.05])
def test_both_forms_agree_on_a_network(rule, ridge):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3)).double()
    generator = torch.Generator().manual_seed(1)
    tasks = [
        (
            torch.randn(n, 5, generator=generator, dtype=torch.float64),
            torch.randn(n, 3, generator=generator, dtype=torch.float64),
        )
        for n in (6, 4, 5)
    ]
    probes = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    kernel = EmpiricalNTK(model, "all")
    plain = solve_stream(kernel, tasks, rule=rule, ridge=ridge, memory=3)
    features = solve_in_feature_space(kernel, tasks, rule=rule, ridge=ridge, memory=3)
    for after in range(4):
        assert (plain.predict(probes, after) - features.predict(probes, after)).abs().max() < 1e-8
    for task in (1, 2, 3):
        assert features.distance(task) == pytest.approx(plain.distance(task), rel=1e-8)
        assert features.dissimilarity(task) == pytest.approx(plain.dissimilarity(task), rel=1e-7)
        assert features.rank(task) == plain.rank(task)
    assert features.distance_from_initialisation() == pytest.approx(
        plain.distance_from_initialisation(), rel=1e-8
    )


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_inputs_that_repeat_each_other_count_once(ridge):
    """Directions of length zero get nothing: the solution is that of the pseudo-inverse."""
    x = torch.tensor([[1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
    y = torch.tensor([1.0, 3.0, -1.0], dtype=torch.float64)
    model = nn.Linear(3, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    found = solve_in_feature_space(EmpiricalNTK(model), [(x, y)], ridge=ridge).predict(torch.eye(3).double())
    gram = x.T @ x + ridge * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(found, torch.linalg.pinv(gram, rtol=1e-10) @ x.T @ y, rtol=0, atol=1e-9)


def test_memory_is_asked_for_before_tangents_are_formed():
    """4 x 8 bytes for each of (points x parameters): one byte less is refused."""
    model = torch.nn.Linear(5, 1).double()
    kernel = EmpiricalNTK(model)
    task = (torch.randn(7, 5, dtype=torch.float64), torch.randn(7, dtype=torch.float64))
    needed = 4 * 8 * 6 * 7
    solve_in_feature_space(kernel, [task], memory_limit=needed)
    with pytest.raises(SettingsError, match="the tangents of 7 points in 6 parameters"):
        solve_in_feature_space(kernel, [task], memory_limit=needed - 1)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("rule", ["sgd", "ogd"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_numbers_are_those_of_the_kernel_form_also_for_dependent_points(rule, ridge, scale):
    """Nine points in six parameters, one of them twice."""
    model = torch.nn.Linear(5, 1).double()
    generator = torch.Generator().manual_seed(0)
    x = scale * torch.randn(8, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(9, generator=generator, dtype=torch.float64)
    tasks = [(torch.cat([x[:4], x[:1]]), y[:5]), (x[4:], y[5:])]
    kernel = EmpiricalNTK(model)
    settings = {"rule": rule, "ridge": ridge * scale**2, "initial": 0.0}
    one, other = solve_in_feature_space(kernel, tasks, **settings), solve_stream(kernel, tasks, **settings)
    for task in (1, 2):
        assert one.dissimilarity(task) == pytest.approx(other.dissimilarity(task), rel=1e-6)
        assert one.distance(task) == pytest.approx(other.distance(task), rel=1e-6)
        assert one.rank(task) == other.rank(task)
        assert torch.allclose(one.predict(x, task), other.predict(x, task), rtol=1e-6, atol=1e-6)
    assert one.distance_from_initialisation() == pytest.approx(other.distance_from_initialisation(), rel=1e-6)


@pytest.mark.parametrize("apart", [1.0, 1e-2, 1e-4, 1e-5, 3e-6, 1e-6, 1e-8])
def test_the_error_that_is_reported_is_the_one_that_is_made(apart):
    """Task 2 is task 1 moved by a little: its kernel loses the square of that. The truth is taken from the tangents."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *size: torch.randn(*size, generator=generator, dtype=torch.float64)  # noqa: E731
    x, moved, first, second, probes = draw(40, 60), draw(40, 60), draw(40), draw(40), draw(50, 60)
    near = x + apart * moved
    weights = torch.linalg.lstsq(x, first[:, None]).solution
    basis = torch.linalg.qr(x.T)[0]
    free = apart * moved
    for _ in range(2):
        free = free - (free @ basis) @ basis.T
    truth = (probes @ torch.linalg.pinv(free) @ (second[:, None] - near @ weights))[:, 0]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        solution = solve_stream(lambda a, b: a @ b.T, [(x, first), (near, second)])
    made = float((solution.increment(probes, 2) - truth).norm() / truth.norm())
    reported = solution.conditioning()
    assert reported.error >= made / 10
    assert reported.error <= max(1e3 * made, 1e-12)
    assert reported.error == max(reported.errors)
    assert any("relative error" in str(each.message) for each in said) == (
        made > 0.1 and apart > 1e-7
    )  # below, rounding hides all
