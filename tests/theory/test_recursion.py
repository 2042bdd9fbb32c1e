"""What counts as zero is relative: in other units of the kernel everything is the same."""

from __future__ import annotations

import math

import pytest
import torch

from orthocl.theory import solve_stream
from orthocl.theory.dynamics import contraction, limit_training_loss, max_learning_rate, outputs_during
from orthocl.theory.recursion import as_slice, recurse

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randn(6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
NEW = torch.randn(5, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
# Repeated and dependent points, a point that the first task knows, and a task of known points only.
TASKS = [
    (torch.cat([X[:2], X[:1]]), torch.cat([Y[:2], Y[:1]])),
    (torch.cat([X[1:4], X[2:3] + X[3:4]]), Y[1:5]),
    (X[:2], -Y[:2]),
]


def solved(scale, rule, ridge):
    return solve_stream(
        lambda x, z: scale * (x @ z.T), TASKS, rule=rule, ridge=scale * ridge, memory=None, initial=0.2
    )


@pytest.mark.parametrize("scale", [1e-8, 1e8])
@pytest.mark.parametrize("ridge", [0.0, 1e-9, 0.1])
@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_units_of_the_kernel_do_not_matter(scale, ridge, rule):
    one, other = solved(1.0, rule, ridge), solved(scale, rule, ridge)
    for after in (1, 2, 3):
        assert torch.allclose(one.predict(NEW, after), other.predict(NEW, after), rtol=1e-6, atol=1e-6)
        assert other.distance(after) * math.sqrt(scale) == pytest.approx(
            one.distance(after), rel=1e-5, abs=1e-5
        )
    assert [one.rank(task) for task in (1, 2, 3)] == [other.rank(task) for task in (1, 2, 3)]
    assert one.conditioning().dropped == other.conditioning().dropped
    assert one.conditioning().unfitted == other.conditioning().unfitted
    assert one.conditioning().smallest_pivot == pytest.approx(other.conditioning().smallest_pivot)
    for task in (1, 2, 3):
        assert max_learning_rate(other, task) * scale == pytest.approx(max_learning_rate(one, task), rel=1e-6)
        assert limit_training_loss(one, task) == pytest.approx(limit_training_loss(other, task), abs=1e-6)
        rate = 0.02
        assert contraction(other, task, rate / scale) == pytest.approx(contraction(one, task, rate), rel=1e-6)
        during = [
            outputs_during(s, task, [0, 3, 50], r, NEW) for s, r in ((one, rate), (other, rate / scale))
        ]
        assert torch.allclose(*during, rtol=1e-6, atol=1e-6)


def test_ogd_by_explicit_weights():
    """w_t = w_{t-1} + P_t X^T (X P_t X^T + lam)^+ (y - X w_{t-1}), P_t off the span of all earlier inputs."""
    for ridge in (0.0, 0.1):
        solution = solve_stream(lambda x, z: x @ z.T, TASKS, rule="ogd", ridge=ridge)
        weights, seen = torch.zeros(4, 2, dtype=torch.float64), torch.zeros(0, 4, dtype=torch.float64)
        for number, (x, y) in enumerate(TASKS, start=1):
            free = torch.eye(4, dtype=torch.float64) - torch.linalg.pinv(seen, rtol=1e-9) @ seen
            inner = x @ free @ x.T
            shifted = inner + ridge * torch.eye(len(x), dtype=torch.float64)
            inverse = torch.linalg.pinv(shifted, atol=1e-9, rtol=0.0, hermitian=True)
            step = free @ x.T @ inverse @ (y - x @ weights)
            assert solution.distance(number) == pytest.approx(float(step.norm()), rel=1e-7, abs=1e-6)
            weights, seen = weights + step, torch.cat([seen, x])
            assert torch.allclose(solution.predict(NEW, number), NEW @ weights, atol=1e-7)
            assert solution.distance_from_initialisation(number) == pytest.approx(
                float(weights.norm()), rel=1e-7
            )
        assert [solution.rank(task) for task in (1, 2, 3)] == [
            0,
            4,
            8,
        ]  # two outputs, 2 and then 4 directions
        # Of two outputs: a repeated point, then one that was known and one that is a sum of others.
        assert solution.conditioning().dropped == 2 * (1 + 2)


def test_rows_that_are_a_slice():
    assert as_slice(torch.tensor([3, 4, 5])) == slice(3, 6)
    assert as_slice(torch.tensor([7])) == slice(7, 8)
    assert as_slice(torch.zeros(0, dtype=torch.long)) == slice(0, 0)
    for rows in ([3, 5], [5, 4, 3], [3, 4, 4, 6], [3, 4, 4], [1, 3, 2, 4]):
        assert as_slice(torch.tensor(rows)) is None


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_rows_of_a_task_may_be_anywhere_in_the_joint_matrix(rule):
    """The same tasks, once one after the other and once with their rows among each other."""
    x, y = torch.cat([X, NEW]), torch.cat([Y, -Y[:5]])
    mixed = [torch.tensor([4, 0, 7]), torch.tensor([9, 3]), torch.tensor([10, 1, 2, 6])]
    places = torch.cat(mixed)
    blocks = list(torch.arange(9).split([3, 2, 4]))
    settings = {
        "rule": rule,
        "ridge": 0.1,
        "memory": [torch.tensor([2, 0]), torch.arange(2), torch.arange(4)],
    }
    start = torch.zeros(11, 2, dtype=torch.float64)
    found = recurse(x @ x.T, mixed, [y[rows] for rows in mixed], start, **settings)
    joint = x[places] @ x[places].T
    wanted = recurse(joint, blocks, [y[rows] for rows in mixed], start[:9], **settings)
    for task in range(3):
        one, other = found.steps[task], wanted.steps[task]
        torch.testing.assert_close(one.effective, other.effective)
        torch.testing.assert_close(one.span[places], other.span)
        assert one.memory_rank == other.memory_rank
        torch.testing.assert_close(found.outputs[task + 1][places], wanted.outputs[task + 1])
