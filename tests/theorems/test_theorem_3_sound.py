"""Theorem 3' simulated where the true risk is known: finite inputs with known probabilities."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from orthocl.theory import generalisation_bound, solve_stream


def distributions() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Three tasks: 24 unit inputs, their probabilities, and the probability of y = +1 at each."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for task in range(3):
        sign = torch.where(torch.arange(24) % 2 == 0, 1.0, -1.0).double()
        x = torch.randn(24, 10, generator=generator, dtype=torch.float64) * 0.11
        x[:, 0] = sign
        x[:, 1 + task] += 0.3
        x = x / x.norm(dim=1, keepdim=True)
        weight = torch.rand(24, generator=generator, dtype=torch.float64) + 0.2
        positive = torch.where(sign > 0, 0.95, 0.05).double()
        if task == 1:  # partly at odds with the others, so that something is forgotten
            positive = torch.where(x[:, 2] + x[:, 3] > 0.2, 0.95, positive)
        found.append((x, weight / weight.sum(), positive))
    return found


def test_several_outputs():
    """One-hot targets, three tasks: the vector form, with 2 sqrt(2) rho and the trace over all outputs."""
    tasks = distributions()
    generator = torch.Generator().manual_seed(2)
    for _ in range(40):
        samples = []
        for x, weight, positive in tasks:
            drawn = torch.multinomial(weight, 600, replacement=True, generator=generator)
            right = (torch.rand(600, generator=generator, dtype=torch.float64) < positive[drawn]).double()
            samples.append((x[drawn], torch.stack([right, 1 - right], 1)))
        solution = solve_stream(lambda x, z: x @ z.T, samples, rule="ogd", ridge=100.0)
        for task, (x, weight, positive) in enumerate(tasks, start=1):
            u = solution.predict(x)
            one, other = torch.eye(2, dtype=torch.float64)
            loss = [(u - y).square().sum(1).clamp(max=1) for y in (one, other)]
            risk = float((weight * (positive * loss[0] + (1 - positive) * loss[1])).sum())
            for form in ("sound", "sequential"):
                assert risk <= generalisation_bound(solution, task=task, unit_radius=0.25, form=form).value


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_no_violation_in_200_draws_and_not_vacuous(rule):
    tasks = distributions()
    generator = torch.Generator().manual_seed(1)
    above_empirical, largest, gain = 0, 0.0, 0.0
    for _ in range(200):
        samples = []
        for x, weight, positive in tasks:
            drawn = torch.multinomial(weight, 600, replacement=True, generator=generator)
            noise = torch.rand(600, generator=generator, dtype=torch.float64)
            samples.append((x[drawn], torch.where(noise < positive[drawn], 1.0, -1.0).double()))
        solution = solve_stream(lambda x, z: x @ z.T, samples, rule=rule, ridge=100.0)
        for task, (x, weight, positive) in enumerate(tasks, start=1):
            u = solution.predict(x)
            loss = {y: (u - y).square().clamp(max=1) for y in (1.0, -1.0)}
            risk = float((weight * (positive * loss[1.0] + (1 - positive) * loss[-1.0])).sum())
            bound = generalisation_bound(solution, task=task, unit_radius=0.25)
            assert risk <= bound.value
            sharper = generalisation_bound(solution, task=task, unit_radius=0.25, form="sequential")
            assert risk <= sharper.value
            gain += bound.value - sharper.value if task == 3 else 0.0
            above_empirical += risk > bound.terms["empirical"]
            largest = max(largest, bound.value)
    assert gain > 0  # the last task does not pay for the others
    assert largest < 1.0  # the loss is at most 1: a bound below 1 says something
    assert above_empirical > 100  # the empirical term alone would not have been a bound
