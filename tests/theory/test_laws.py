"""The laws of continual linear regression against Monte Carlo, within three standard errors."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from orthocl.errors import SettingsError
from orthocl.theory.laws import (
    alternating_forgetting,
    best_latent_order,
    capacity_law,
    expected_average_loss,
    latent_final_error,
    mean_alternating_forgetting,
    ogd_expected_losses,
    partial_rotation_forgetting,
    peripheral_first,
    rotation_forgetting,
    sgd_expected_losses,
    typicality_order,
    unlike_neighbours,
    worst_alternating_forgetting,
)
from orthocl.theory.laws.rotations import expected_traces


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
    assert capacity_law(50, 24, 0.1).threshold == pytest.approx(1 / 50)  # the largest: (p - 2n - 1) / p
    with pytest.raises(SettingsError, match="leaves no room"):
        ogd_expected_losses(goals, 30)
    assert bool(ogd_expected_losses(goals, [24, 24]).isfinite().all())
    with pytest.raises(SettingsError, match="no room"):  # 49 of p - 1 = 49
        ogd_expected_losses(goals, [24, 25])
    with pytest.raises(SettingsError, match="fewer than p - 1"):
        sgd_expected_losses(goals, 60)
    parameters = goals.shape[1]
    with pytest.raises(SettingsError, match="fewer than p - 1"):
        sgd_expected_losses(goals, parameters - 1)
    assert sgd_expected_losses(goals, parameters - 2).isfinite().all()


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


@pytest.mark.parametrize("steps", [2, 4])
def test_alternation_on_average(steps):
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randn(3, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    drawn = torch.randn(1000, 8, generator=generator, dtype=torch.float64)
    drawn = drawn / drawn.norm(dim=1, keepdim=True)
    found = torch.tensor([alternating_forgetting(first, second, w, steps) for w in drawn])
    expected = mean_alternating_forgetting(first, second, steps)
    assert abs(float(found.mean()) - expected) <= 3 * float(found.std()) / 1000**0.5
    assert expected < worst_alternating_forgetting(first, second, steps)
    with pytest.raises(SettingsError, match="even"):
        mean_alternating_forgetting(first, second, 3)


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


@pytest.mark.parametrize(("d", "p", "m"), [(1, 6, 3), (2, 6, 1), (4, 6, 5), (3, 5, 4), (8, 24, 14)])
def test_partial_rotations(d, p, m):
    errors = simulate_rotation(d, p, m, draws=2000)
    gap = abs(float(errors.mean()) - partial_rotation_forgetting(d, p, m))
    assert gap <= 3 * float(errors.std()) / 2000**0.5
    assert partial_rotation_forgetting(d, p, 0) == 0
    with pytest.raises(SettingsError, match="rotated dimensions"):
        partial_rotation_forgetting(d, p, p + 1)


@pytest.mark.parametrize(("d", "m"), [(1, 1), (2, 5), (4, 3), (6, 6)])
def test_expected_traces(d, m):
    draws = 4000
    frame = rotations(draws, 7, torch.Generator().manual_seed(2))[:, :d, :m]
    powers = frame.mT @ frame
    traces = {k: torch.linalg.matrix_power(powers, k).diagonal(dim1=1, dim2=2).sum(1) for k in range(1, 5)}
    for key, expected in expected_traces(d, 7, m).items():
        drawn = torch.stack([traces[k] for k in key]).prod(0)
        assert abs(float(drawn.mean()) - expected) <= 3 * float(drawn.std()) / draws**0.5 + 1e-9


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


def similarities(count: int, generator: torch.Generator, level: float = 0.5) -> torch.Tensor:
    """A positive definite matrix with ones on its diagonal and entries of different sizes around a level."""
    rows = torch.randn(count, 3 * count, generator=generator, dtype=torch.float64)
    rows = rows + 3 * level * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    rows = rows / rows.norm(dim=1, keepdim=True)
    return rows @ rows.T


def learn_latent(c: torch.Tensor, b: torch.Tensor, order: tuple[int, ...], draws: int) -> torch.Tensor:
    """Final errors of a student W taught task after task by explicit projections, for targets drawn at random."""
    generator = torch.Generator().manual_seed(5)
    count, factors, answers = len(c), 3, 4
    inputs = 2 * count * factors
    frame = torch.linalg.qr(torch.randn(inputs, count * factors, generator=generator, dtype=torch.float64))[0]
    mixing = torch.linalg.cholesky(c)
    a = torch.einsum("kj,ijf->kif", mixing, frame.view(inputs, count, factors))
    drawn = torch.randn(draws, count, answers, factors, generator=generator, dtype=torch.float64)
    targets = torch.einsum("kj,djaf->dkaf", torch.linalg.cholesky(b), drawn) / (answers * factors) ** 0.5
    w = torch.zeros(draws, answers, inputs, dtype=torch.float64)
    for number in order:
        task = a[number - 1]
        w = w + (targets[:, number - 1] - w @ task) @ torch.linalg.pinv(task)
    return torch.stack([(w @ a[k] - targets[:, k]).square().sum((1, 2)) for k in range(count)]).mean(0)


@pytest.mark.parametrize("order", [(1, 2, 3, 4), (3, 1, 4, 2)])
def test_final_error_with_latent_factors(order):
    generator = torch.Generator().manual_seed(4)
    c, b = similarities(4, generator), similarities(4, generator)
    errors = learn_latent(c, b, order, draws=4000)
    gap = abs(float(errors.mean()) - latent_final_error(c, b, order))
    assert gap <= 3 * float(errors.std()) / 4000**0.5
    for wrong, words in (([1, 1, 2, 3], "once"), ([1, 2], "once")):
        with pytest.raises(SettingsError, match=words):
            latent_final_error(c, b, wrong)
    with pytest.raises(SettingsError, match="diagonal"):
        latent_final_error(2 * c, b)
    with pytest.raises(SettingsError, match="symmetric"):
        latent_final_error(c.tril(), b)
    with pytest.raises(SettingsError, match="at most 9"):
        best_latent_order(torch.eye(10), torch.eye(10))


def scattered(count: int, level: float, spread: float, generator: torch.Generator) -> torch.Tensor:
    """Similarities drawn uniformly around a level."""
    drawn = level + spread * (2 * torch.rand(count, count, generator=generator, dtype=torch.float64) - 1)
    return ((drawn + drawn.T) / 2).fill_diagonal_(1)


@pytest.mark.parametrize(("targets", "helps"), [(0.8, True), (0.0, False)])
def test_the_rules_hold_where_targets_are_alike(targets, helps):
    """Against the mean of all orders, over random inputs: by more than three standard errors, one way or the other."""
    generator = torch.Generator().manual_seed(6)
    gains: dict[str, list[float]] = {"peripheral": [], "unlike": []}
    b = torch.full((4, 4), targets, dtype=torch.float64).fill_diagonal_(1)
    for _ in range(40):
        c = scattered(4, 0.3, 0.15, generator)
        errors = [latent_final_error(c, b, order) for order in itertools.permutations(range(1, 5))]
        mean = sum(errors) / len(errors)
        gains["peripheral"].append(mean - latent_final_error(c, b, peripheral_first(c)))
        gains["unlike"].append(mean - latent_final_error(c, b, unlike_neighbours(c)))
    assert latent_final_error(c, b, best_latent_order(c, b)) == min(errors)
    for name, drawn in gains.items():
        values = torch.tensor(drawn)
        error = float(values.std()) / len(values) ** 0.5
        if helps:
            assert float(values.mean()) > 3 * error
        elif name == "unlike":
            assert float(values.mean()) < -3 * error


def test_long_paths_are_permutations():
    c = similarities(12, torch.Generator().manual_seed(7))
    assert sorted(unlike_neighbours(c)) == list(range(1, 13))


@pytest.mark.parametrize(("p", "m"), [(2, 2), (3, 3), (5, 1), (5, 2), (6, 4), (9, 9)])
def test_rotations_of_one_direction_by_hand(p, m):
    """Rank 1: the error is g^2 s^2 (1 - g s)^2, g ~ Beta(m/2, (p - m)/2), s = 1 - c, c a coordinate on a sphere."""

    def moment(power: int) -> float:  # E g^power
        return math.prod((m / 2 + step) / (p / 2 + step) for step in range(power))

    second, fourth = 1 / m, 3 / (m * (m + 2))  # of c; odd ones vanish
    expected = (
        moment(2) * (1 + second) - 2 * moment(3) * (1 + 3 * second) + moment(4) * (1 + 6 * second + fourth)
    )
    assert partial_rotation_forgetting(1, p, m) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("p", "m"), [(2, 1), (4, 3), (7, 2), (7, 7)])
def test_rotations_of_all_inputs_by_hand(p, m):
    """Full rank: w_2 - v = O^T (I - O) v, of squared length 2 (1 - v . O v) = 2 m / p on average."""
    assert partial_rotation_forgetting(p, p, m) == pytest.approx(2 * m / p, rel=1e-12)


def test_expected_losses_with_noise_by_hand():
    """Teachers e_1 and e_2 in 11 dimensions, 2 then 3 samples, noise of variance 1/4."""
    goals = torch.eye(2, 11, dtype=torch.float64)
    sgd = sgd_expected_losses(goals, [2, 3], noise=0.5)
    first = [9 / 11 + 2 / 8 / 4, 9 / 11 + 2 * 2 / 11 + 2 / 8 / 4]
    second = [8 / 11 * first[0] + 2 * 3 / 11 + 3 / 7 / 4, 8 / 11 * first[1] + 3 / 7 / 4]
    assert sgd.tolist() == [[1.0, 1.0], pytest.approx(first), pytest.approx(second)]
    ogd = ogd_expected_losses(goals, [2, 3], noise=0.5)
    inside = [2 / 8 / 4, 2 * 2 / 11 + 2 / 8 / 4]  # of the first task's two directions
    price = 3 / (11 - 5 - 1) * (inside[1] + 1 / 4)
    last = [6 / 11 + inside[0] + 2 * 3 / 11 + price, 6 / 11 + inside[1] + price]
    assert ogd.tolist() == [[1.0, 1.0], pytest.approx([9 / 11 + e for e in inside]), pytest.approx(last)]


def test_the_smallest_and_largest_numbers_that_laws_accept():
    assert capacity_law(100, 20, 0.0).sgd == pytest.approx(0.64)
    for p, n, d in ((100, 20, -0.1), (100, 0, 0.1), (41, 20, 0.1)):
        with pytest.raises(SettingsError, match="the law needs"):
            capacity_law(p, n, d)
    edge = capacity_law(50, 12, 0.5)
    assert (edge.threshold, edge.ogd_wins) == (0.5, False)  # the same loss is no victory
    with pytest.raises(SettingsError, match="at least one sample"):
        sgd_expected_losses(torch.eye(2, 9), [3, 0])
    with pytest.raises(SettingsError, match="at least one sample"):
        sgd_expected_losses(torch.eye(2, 9), [3])
    with pytest.raises(SettingsError, match="rank"):
        partial_rotation_forgetting(1, 1, 1)
    with pytest.raises(SettingsError, match="rank"):
        partial_rotation_forgetting(0, 4, 1)
    with pytest.raises(SettingsError, match="rotated"):
        partial_rotation_forgetting(2, 4, -1)


def test_orders_are_compared_up_to_the_number_of_tasks_that_is_named(monkeypatch):
    monkeypatch.setattr("orthocl.theory.laws.latent_order.MOST_TASKS", 3)
    assert sorted(best_latent_order(torch.eye(3), torch.eye(3))) == [1, 2, 3]
    with pytest.raises(SettingsError, match="at most 3 tasks, got 4"):
        best_latent_order(torch.eye(4), torch.eye(4))


def test_one_sample_a_task_is_enough():
    assert sgd_expected_losses(torch.eye(2, 9), [1, 1]).isfinite().all()
    assert ogd_expected_losses(torch.eye(2, 9), 1).isfinite().all()
