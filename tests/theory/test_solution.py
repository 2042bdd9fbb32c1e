"""What a solution tells of each task: as given, and by hand."""

from __future__ import annotations

import pytest
import torch

from orthocl.theory import solve_stream


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
