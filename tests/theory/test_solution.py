"""What a solution tells of each task: as given, and by hand."""

from __future__ import annotations

import pytest
import torch

from orthocl.theory import EmpiricalNTK, solve_stream


@pytest.mark.parametrize("columns", [1, 2])
def test_targets_and_traces_of_each_task(columns):
    """f = W x: the trace over outputs is that of x x^T, as many times as there are outputs."""
    generator = torch.Generator().manual_seed(0)
    tasks = [
        (
            torch.randn(count, 3, generator=generator, dtype=torch.float64),
            torch.randn(count, columns, generator=generator, dtype=torch.float64),
        )
        for count in (2, 4, 3)
    ]
    solution = solve_stream(lambda x, z: x @ z.T, tasks, ridge=0.1)
    for number, (x, y) in enumerate(tasks, start=1):
        torch.testing.assert_close(solution.task_targets(number), y)
        assert solution.base_trace(number) == pytest.approx(columns * float(x.square().sum()))
        assert solution.samples(number) == len(x)


def test_the_effective_kernel_with_one_point_in_memory_by_hand():
    """Off the first axis (3, 4) keeps 4 of its length; before anything is remembered, all of it."""
    tasks = [
        (torch.tensor([[2.0, 0.0]], dtype=torch.float64), torch.ones(1)),
        (torch.tensor([[0.0, 1.0]], dtype=torch.float64), torch.ones(1)),
        (torch.tensor([[1.0, 1.0]], dtype=torch.float64), torch.ones(1)),
    ]
    solution = solve_stream(lambda x, z: x @ z.T, tasks, rule="ogd")
    points = torch.tensor([[3.0, 4.0], [1.0, -2.0]], dtype=torch.float64)
    diagonals = [solution.effective_kernel(task).diagonal(points).tolist() for task in (1, 2, 3)]
    assert diagonals == [pytest.approx(each, abs=1e-12) for each in ([25.0, 5.0], [16.0, 4.0], [0.0, 0.0])]
    assert solution.effective_kernel(2).gram(points).tolist() == [
        pytest.approx([16.0, -8.0]),
        pytest.approx([-8.0, 4.0]),
    ]


def test_targets_of_a_network_come_back_as_given_for_tasks_of_any_size():
    generator = torch.Generator().manual_seed(0)
    kernel = EmpiricalNTK(torch.nn.Linear(4, 3), "all")
    tasks = [
        (
            torch.randn(count, 4, generator=generator, dtype=torch.float64),
            torch.randn(count, 3, generator=generator, dtype=torch.float64),
        )
        for count in (2, 5, 3)
    ]
    solution = solve_stream(kernel, tasks, ridge=0.1)
    for number, (x, y) in enumerate(tasks, start=1):
        assert torch.equal(solution.task_targets(number), y)
        before = solution.predict(x, after=number - 1)
        torch.testing.assert_close(solution.residual(number), y - before)
        torch.testing.assert_close(solution.train_outputs(number), solution.predict(x))
