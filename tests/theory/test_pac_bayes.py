"""The PAC-Bayes bound against explicit Gaussians over the weights of a linear model."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from orthocl.errors import DataError, SettingsError
from orthocl.theory import EmpiricalNTK, Points, solve_stream
from orthocl.theory.certificate import certify
from orthocl.theory.pac_bayes import (
    SCALES,
    SHARES,
    TOGETHER,
    _gibbs_table,
    _maurer,
    gibbs_bound,
    kl_inverse,
    prior_order,
)

FEATURES, RIDGE, DELTA = 4, 0.3, 0.05
EYE = torch.eye(FEATURES, dtype=torch.float64)


def linear(x, z):
    return x @ z.T


def stream(unit=1.0):
    generator = torch.Generator().manual_seed(0)
    tasks = []
    for count in (2, 7, 3):
        x = torch.randn(count, FEATURES, generator=generator, dtype=torch.float64)
        tasks.append((unit * x, (x[:, 0] + 0.3 * x[:, 1]).sign()))
    return tasks


def weights(tasks, rule, ridge):
    """w_T of a linear model from zero: its outputs at the unit vectors."""
    return solve_stream(linear, tasks, rule=rule, ridge=ridge, initial=0.0).predict(EYE)


def reference(prior, rule, after, share, scale, noise, unit=1.0):
    """Value, Gibbs error and KL, all from explicit means and covariances in the range of P_2."""
    tasks, ridge = stream(unit), unit**2 * RIDGE
    x, y = tasks[1]
    seen = int(share * len(x))
    final = weights(tasks[:after], rule, ridge)
    mean, free = weights(tasks[:1], rule, ridge), EYE
    if rule == "ogd":  # a basis of what the first task leaves free
        free = torch.linalg.svd(tasks[0][0])[2][2:].T
    if prior == "initialisation":
        mean, free = torch.zeros_like(mean), EYE
    order = prior_order(len(x))
    x, y = x[order], y[order]
    z, a = x @ free, (x @ free)[:seen]
    eye = torch.eye(free.shape[1], dtype=torch.float64)
    if prior == "other-samples" and seen:
        reduced = list(tasks[:after])
        reduced[1] = (x[:seen], y[:seen])
        mean = weights(reduced, rule, ridge)
    elif seen:
        mean = mean + free @ torch.linalg.solve(a.T @ a + ridge * eye, a.T @ (y[:seen] - x[:seen] @ mean))
    before = scale * torch.linalg.inv(eye + a.T @ a / noise)
    behind = scale * torch.linalg.inv(eye + z.T @ z / noise)
    divergence = float(
        kl_divergence(
            MultivariateNormal(torch.zeros(len(eye), dtype=torch.float64) + free.T @ final, behind),
            MultivariateNormal(free.T @ mean, before),
        )
    )
    rest = slice(seen, None)
    spread = (z @ behind @ z.T).diagonal()[rest].sqrt()
    error = float(torch.special.ndtr(-y[rest] * (x[rest] @ final) / spread).mean())
    count = len(x) - seen
    budget = (divergence + math.log(_maurer(count) * TOGETHER / DELTA)) / count
    return kl_inverse(error, budget), error, divergence


@pytest.mark.parametrize("after", [2, 3])
@pytest.mark.parametrize("rule", ["sgd", "ogd"])
@pytest.mark.parametrize("prior", ["earlier-tasks", "other-samples", "initialisation"])
def test_the_bound_is_that_of_explicit_gaussians(prior, rule, after):
    solution = solve_stream(linear, stream(), rule=rule, ridge=RIDGE, initial=0.0)
    found = gibbs_bound(solution, task=2, after=after, delta=DELTA, prior=prior)
    chosen = (found.share, found.scale, found.noise)
    value, error, divergence = reference(prior, rule, after, *chosen)
    assert found.samples == 7 - int(found.share * 7)
    assert found.divergence == pytest.approx(divergence, rel=1e-6)
    assert found.empirical == pytest.approx(error, rel=1e-6)
    assert found.value == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("prior", ["earlier-tasks", "other-samples"])
def test_both_shares_are_right_and_the_smallest_is_taken(prior, share, monkeypatch):
    solution = solve_stream(linear, stream(), rule="ogd", ridge=RIDGE, initial=0.0)
    monkeypatch.setattr("orthocl.theory.pac_bayes.SHARES", (share,))
    found = gibbs_bound(solution, task=2, after=3, delta=DELTA, prior=prior)
    value, error, divergence = reference(prior, "ogd", 3, share, found.scale, found.noise)
    assert (found.value, found.empirical, found.divergence) == pytest.approx(
        (value, error, divergence), rel=1e-6
    )
    some = itertools.product(SCALES[::4], SCALES[::4])
    assert found.value <= min(reference(prior, "ogd", 3, share, *pair)[0] for pair in some) + 0.02


def test_the_constant_of_maurer_by_hand():
    """n = 1: 1 + 1. n = 2: 1 + 2/4 + 1. n = 3: 1 + 4/9 + 4/9 + 1."""
    assert [_maurer(count) for count in (1, 2, 3)] == pytest.approx([2.0, 2.5, 26 / 9])
    naive = sum(math.comb(20, k) * (k / 20) ** k * (1 - k / 20) ** (20 - k) for k in range(21))
    assert _maurer(20) == pytest.approx(naive)


def test_the_inverse_of_kl():
    def kl(q, p):
        return sum(a * math.log(a / b) for a, b in ((q, p), (1 - q, 1 - p)) if a)

    for error, budget in ((0.0, 0.1), (0.1, 0.05), (0.5, 0.3), (0.9, 0.001)):
        found = kl_inverse(error, budget)
        assert error < found < 1
        assert kl(error, found) == pytest.approx(budget, abs=1e-6)
    assert kl_inverse(0.3, 1e6) == 1.0
    assert kl_inverse(1.0, 0.1) == 1.0
    assert kl_inverse(-1e-9, 0.1) == kl_inverse(0.0, 0.1)


def test_without_spread_an_error_is_a_wrong_sign():
    margins = torch.tensor([1.0, -1.0, 0.0, 2.0], dtype=torch.float64)
    table = _gibbs_table(margins, torch.zeros(4, 1, dtype=torch.float64))
    assert torch.equal(table, torch.full((len(SCALES), 1), 0.5, dtype=torch.float64))
    wide = _gibbs_table(margins[:1], torch.full((1, 1), 2.0, dtype=torch.float64))
    expected = [0.5 * math.erfc(1 / (2 * math.sqrt(scale)) / math.sqrt(2)) for scale in SCALES]
    assert wide[:, 0].tolist() == pytest.approx(expected)


def test_what_the_form_cannot_bound_is_refused():
    x = torch.randn(3, 2, dtype=torch.float64)
    several = solve_stream(linear, [(x, torch.ones(3, 2))], ridge=1.0)
    with pytest.raises(SettingsError, match="got 2 outputs"):
        gibbs_bound(several, task=1, after=1, delta=DELTA)
    with pytest.raises(DataError, match="some are zero"):
        gibbs_bound(
            solve_stream(linear, [(x, torch.tensor([1.0, 0.0, -1.0]))], ridge=1.0),
            task=1,
            after=1,
            delta=DELTA,
        )


@pytest.mark.parametrize(("unit", "scale"), [(1e-4, 1e-8), (1.0, 1.0), (1e2, 1e-4)])
@pytest.mark.parametrize("prior", ["earlier-tasks", "initialisation"])
def test_a_prior_from_half_the_sample_in_any_unit_of_the_inputs(prior, unit, scale, monkeypatch):
    monkeypatch.setattr("orthocl.theory.pac_bayes.SHARES", (0.5,))
    monkeypatch.setattr("orthocl.theory.pac_bayes.SCALES", (scale, 4 * scale))
    solution = solve_stream(linear, stream(unit), rule="ogd", ridge=unit**2 * RIDGE, initial=0.0)
    found = gibbs_bound(solution, task=2, after=3, delta=DELTA, prior=prior)
    value, error, divergence = reference(prior, "ogd", 3, 0.5, found.scale, found.noise, unit)
    assert (found.value, found.empirical, found.divergence) == pytest.approx(
        (value, error, divergence), rel=1e-6
    )


def test_one_sample_is_enough_for_a_prior(monkeypatch):
    solution = solve_stream(linear, stream(), rule="ogd", ridge=RIDGE, initial=0.0)
    monkeypatch.setattr("orthocl.theory.pac_bayes.SHARES", (0.5,))
    found = gibbs_bound(solution, task=1, after=3, delta=DELTA)
    assert (found.samples, found.share) == (1, 0.5)


def test_the_level_is_shared_by_all_choices():
    assert [math.log(scale, 4) for scale in SCALES] == pytest.approx(list(range(-8, 9)))
    assert len(list(itertools.product(SCALES, SCALES, SHARES))) == 17 * 17 * 2 == TOGETHER


@pytest.mark.parametrize("unit", [1.0, 1e-12, 1e-20])
def test_noise_is_not_bounded_below_its_error_in_any_unit_of_the_kernel(unit):
    """Labels by chance have an error of one half, however small the kernel is against the posterior's noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 40, generator=generator, dtype=torch.float64)
    y = torch.randn(400, generator=generator, dtype=torch.float64).sign()
    solution = solve_stream(lambda x, z: unit * (-torch.cdist(x, z).square() / 20).exp(), [(x, y)], ridge=1.0)
    assert gibbs_bound(solution, task=1, after=1, delta=DELTA).value > 0.5


def test_several_rows_of_one_input_are_not_several_samples():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    kernel = EmpiricalNTK(torch.nn.Linear(3, 4).double(), "gtl")
    rows = Points.every_logit(x, outputs=4)
    solution = solve_stream(kernel, [(rows, torch.ones(20, dtype=torch.float64))], ridge=1.0)
    assert solution.outputs_per_input(1) == 4
    with pytest.raises(SettingsError, match="got 4 outputs"):
        gibbs_bound(solution, task=1, after=1, delta=DELTA)
    assert "pac-bayes" not in [bound.form for bound in certify(solution, task=1).bounds]
