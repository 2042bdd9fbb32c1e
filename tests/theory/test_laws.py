"""The laws of continual linear regression against Monte Carlo, within three standard errors."""

from __future__ import annotations

import itertools

import pytest
import torch

from orthocl.errors import SettingsError
from orthocl.theory.laws import (
    alternating_forgetting,
    capacity_law,
    expected_average_loss,
    ogd_expected_losses,
    partial_rotation_forgetting,
    rotation_forgetting,
    sgd_expected_losses,
    typicality_order,
    worst_alternating_forgetting,
)


def teachers(tasks: int, parameters: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    shared = torch.randn(parameters, generator=generator, dtype=torch.float64)
    own = torch.randn(tasks, parameters, generator=generator, dtype=torch.float64)
    return (shared + 0.6 * own) / parameters**0.5


def simulate(goals: torch.Tensor, sizes: list[int], noise: float, rule: str, draws: int) -> torch.Tensor:
    """Losses of all tasks after each, (draws, T, T), by explicit steps; all draws at once."""
    generator = torch.Generator().manual_seed(0)
    p = goals.shape[1]
    w = torch.zeros(draws, p, dtype=torch.float64)
    memory = torch.zeros(draws, 0, p, dtype=torch.float64)
    found = []
    for task, n in enumerate(sizes):
        x = torch.randn(draws, n, p, generator=generator, dtype=torch.float64)
        y = x @ goals[task] + noise * torch.randn(draws, n, generator=generator, dtype=torch.float64)
        free = x
        if rule == "ogd" and memory.shape[1]:
            basis = torch.linalg.qr(memory.mT)[0]
            free = x - (x @ basis) @ basis.mT
        residual = y - (x @ w[:, :, None])[:, :, 0]
        w = w + (free.mT @ torch.linalg.solve(free @ free.mT, residual[:, :, None]))[:, :, 0]
        memory = torch.cat([memory, x], 1)
        found.append((w[:, None] - goals).square().sum(2))
    return torch.stack(found, 1)


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_expected_losses_of_three_tasks(rule, noise):
    goals, sizes = teachers(3, 40), [6, 10, 8]
    law = sgd_expected_losses if rule == "sgd" else ogd_expected_losses
    expected = law(goals, sizes, noise)[1:]
    losses = simulate(goals, sizes, noise, rule, draws=4000)
    error = losses.std(0) / 4000**0.5
    assert ((losses.mean(0) - expected).abs() <= 3 * error + 1e-9).all()


def test_capacity_law_of_two_tasks():
    goals = teachers(2, 50)
    apart = float((goals[0] - goals[1]).square().sum() / goals[0].square().sum())
    law = capacity_law(50, 12, apart)
    scale = float(goals[0].square().sum())
    assert law.ogd == pytest.approx(float(ogd_expected_losses(goals, 12)[2, 0]) / scale, rel=1e-12)
    assert law.sgd == pytest.approx(float(sgd_expected_losses(goals, 12)[2, 0]) / scale, rel=1e-12)
    for d in (0.1, 0.49, 0.51, 1.9):
        law = capacity_law(50, 12, d)
        assert law.threshold == 0.5
        assert law.ogd_wins == (law.ogd < law.sgd) == (d < 0.5)
    with pytest.raises(SettingsError, match="2n < p - 1"):
        capacity_law(50, 25, 0.1)
    with pytest.raises(SettingsError, match="leaves no room"):
        ogd_expected_losses(goals, 30)
    with pytest.raises(SettingsError, match="fewer than p - 1"):
        sgd_expected_losses(goals, 60)


def test_the_winner_changes_at_the_threshold():
    """Simulated on both sides of D / |w_1|^2 = (p - 2n - 1) / p = 0.475."""
    p, n = 40, 10
    base = torch.zeros(2, p, dtype=torch.float64)
    base[:, 0] = 1
    for d, better in ((0.15, "ogd"), (1.2, "sgd")):
        goals = base.clone()
        goals[1, 1] = d**0.5
        one, other = (simulate(goals, [n, n], 0.0, rule, 4000)[:, 1, 0] for rule in ("ogd", "sgd"))
        gap = float((one - other).mean())
        assert abs(gap) > 3 * float((one - other).std()) / 4000**0.5
        assert ("ogd" if gap < 0 else "sgd") == better == ("ogd" if capacity_law(p, n, d).ogd_wins else "sgd")


@pytest.mark.parametrize("steps", [2, 4, 6])
def test_alternation_at_worst(steps):
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randn(3, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    worst = worst_alternating_forgetting(first, second, steps)
    bases = [torch.linalg.qr(x.T)[0] for x in (first, second)]
    eye = torch.eye(8, dtype=torch.float64)
    free = [eye - b @ b.T for b in bases]
    effect = bases[0].T @ torch.linalg.matrix_power(free[1] @ free[0], steps // 2)
    target = torch.linalg.svd(effect)[2][0]
    assert alternating_forgetting(first, second, target, steps) == pytest.approx(worst, rel=1e-9)
    for _ in range(50):
        w = torch.randn(8, generator=generator, dtype=torch.float64)
        assert alternating_forgetting(first, second, w / w.norm(), steps) <= worst * (1 + 1e-9)
    with pytest.raises(SettingsError, match="two steps"):
        worst_alternating_forgetting(first, second, 1)


def rotations(count: int, size: int, generator: torch.Generator) -> torch.Tensor:
    raw = torch.randn(count, size, size, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(raw)
    return q * r.diagonal(dim1=1, dim2=2).sign()[:, None]


def simulate_rotation(d: int, p: int, m: int, draws: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    frame, inner = rotations(draws, p, generator)[:, :, :m], rotations(draws, m, generator)
    turn = torch.eye(p, dtype=torch.float64) - frame @ frame.mT + frame @ inner @ frame.mT
    x = torch.eye(d, p, dtype=torch.float64).expand(draws, d, p)
    v = torch.zeros(p, dtype=torch.float64)
    v[0] = 1
    second = x @ turn
    y = x @ v
    w = v + (second.mT @ (y - second @ v)[:, :, None])[:, :, 0]
    return (x @ (w - v)[:, :, None])[:, :, 0].square().sum(1)


@pytest.mark.parametrize("d", [3, 12, 20])
def test_full_rotations(d):
    errors = simulate_rotation(d, 24, 24, draws=3000)
    assert abs(float(errors.mean()) - rotation_forgetting(d, 24)) <= 3 * float(errors.std()) / 3000**0.5


@pytest.mark.parametrize(("d", "m"), [(20, 30), (20, 70), (70, 50)])
def test_partial_rotations(d, m):
    """Up to the error of order 1/p that the limit law has."""
    errors = simulate_rotation(d, 100, m, draws=150)
    gap = abs(float(errors.mean()) - partial_rotation_forgetting(d, 100, m))
    assert gap <= 3 * float(errors.std()) / 150**0.5 + 1 / 100
    assert partial_rotation_forgetting(d, 100, 0) == 0
    with pytest.raises(SettingsError, match="rotated dimensions"):
        partial_rotation_forgetting(d, 100, 101)


def test_intermediate_similarity_forgets_most_with_many_parameters():
    few = [partial_rotation_forgetting(10, 200, m) for m in range(20, 201, 20)]
    assert 0 < few.index(max(few)) < len(few) - 1
    many = [partial_rotation_forgetting(180, 200, m) for m in range(20, 201, 20)]
    assert many == sorted(many)


def test_the_most_typical_task_comes_last():
    goals = teachers(5, 30) * torch.tensor([1.0, 1.5, 0.5, 2.0, 1.0])[:, None]
    best = min(itertools.permutations(range(1, 6)), key=lambda order: expected_average_loss(goals, order, 6))
    found = typicality_order(goals)
    assert expected_average_loss(goals, found, 6) == pytest.approx(expected_average_loss(goals, best, 6))
    rows = torch.tensor(found) - 1
    losses = simulate(goals[rows], [6] * 5, 0.0, "sgd", draws=2000)[:, -1].mean(1)
    wanted = expected_average_loss(goals, found, 6)
    assert abs(float(losses.mean()) - wanted) <= 3 * float(losses.std()) / 2000**0.5
    with pytest.raises(SettingsError, match="once"):
        expected_average_loss(goals, [1, 1, 2, 3, 4], 6)
