"""How far the weights may have travelled, from dissimilarities."""

from __future__ import annotations

import math

import pytest
import torch

from orthocl.theory import solve_stream
from orthocl.theory.distance import radius_bound, remembers_everything, transfer_distance
from orthocl.theory.dynamics import contraction, max_learning_rate, outputs_during

GENERATOR = torch.Generator().manual_seed(0)
TASKS = [
    (
        torch.randn(3, 12, generator=GENERATOR, dtype=torch.float64),
        torch.randn(3, generator=GENERATOR, dtype=torch.float64),
    )
    for _ in range(3)
]


def linear(x, z):
    return x @ z.T


def test_only_the_memory_of_earlier_tasks_counts():
    """The last task forgets nothing of itself, whatever it will remember."""
    everything, one = torch.arange(3), torch.arange(1)
    solution = solve_stream(linear, TASKS, rule="ogd", ridge=0.5, memory=[everything, one, one])
    assert [remembers_everything(solution, after) for after in (1, 2, 3)] == [True, True, False]
    assert not remembers_everything(solve_stream(linear, TASKS, rule="sgd"), 1)
    parts = [solution.dissimilarity(task) for task in (1, 2, 3)]
    assert radius_bound(solution, 1) == pytest.approx(math.sqrt(parts[0]))
    assert radius_bound(solution, 2) == pytest.approx(math.sqrt(parts[0] + parts[1]))
    assert radius_bound(solution) == pytest.approx(sum(math.sqrt(part) for part in parts))
    for after in (1, 2, 3):
        assert solution.distance_from_initialisation(after) <= radius_bound(solution, after)


def test_the_distance_of_a_transfer_by_hand():
    """w(P) = 2 on the first axis; Q wants 5 at (1, 1): the step is 3/2 on both axes."""
    source = (torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([2.0]))
    target = (torch.tensor([[1.0, 1.0]], dtype=torch.float64), torch.tensor([5.0]))
    assert transfer_distance(linear, source, target) == pytest.approx(1.5 * math.sqrt(2))


def test_half_the_loss_is_stable_twice_as_far():
    solution = solve_stream(linear, [(torch.tensor([[2.0]]), torch.tensor([1.0]))], ridge=1.0)
    assert max_learning_rate(solution, 1) == pytest.approx(1 / 5)
    assert max_learning_rate(solution, 1, half=True) == pytest.approx(2 / 5)


def test_contraction_by_hand():
    """The same input twice: curvatures 2 and 0. Without ridge only the first is moved along, with one both are."""
    task = (torch.ones(2, 1, dtype=torch.float64), torch.tensor([1.0, 1.0]))
    assert contraction(solve_stream(linear, [task], ridge=0.0), 1, 0.1) == pytest.approx(0.6)
    assert contraction(solve_stream(linear, [task], ridge=1.0), 1, 0.1) == pytest.approx(0.8)
    assert contraction(solve_stream(linear, [task], ridge=0.0), 1, 0.6) == pytest.approx(1.4)  # it diverges


@pytest.mark.parametrize("scale", [1e-14, 1.0, 1e14])
def test_directions_without_kernel_add_nothing_at_other_points(scale):
    """Targets 0 and 2 at one input: descent goes to their mean, by the same steps in every unit."""
    task = (torch.ones(2, 1, dtype=torch.float64), torch.tensor([0.0, 2.0], dtype=torch.float64))
    solution = solve_stream(lambda x, z: scale * x @ z.T, [task])
    probes = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    found = outputs_during(solution, 1, [0, 1, 2], 0.1 / scale, probes)
    expected = torch.tensor([0.0, 0.4, 0.64], dtype=torch.float64)[:, None] * probes.T
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
