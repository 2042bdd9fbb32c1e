"""The bounds simulated where the true risk is known: finite inputs with known probabilities.

Each simulation counts, over 2,000 draws of all samples, how often a form of bound is below the true risk,
which may happen in a share delta of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from orthocl.theory import BoundSettings, certify, generalisation_bound, solve_stream

DRAWS = 2000
DELTA = 0.05
ALLOWED = DELTA * DRAWS + 3 * math.sqrt(DRAWS * DELTA * (1 - DELTA))
KNOWN = BoundSettings(
    unit_radius=0.25, independent=True
)  # a finite set of inputs: tasks share some by chance


@dataclass
class World:
    """A task: its inputs, their probabilities, and the probability of y = +1 at each."""

    x: Tensor
    weight: Tensor
    positive: Tensor

    def draw(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        drawn = torch.multinomial(self.weight, samples, replacement=True, generator=generator)
        noise = torch.rand(samples, generator=generator, dtype=torch.float64)
        return self.x[drawn], torch.where(noise < self.positive[drawn], 1.0, -1.0).double()

    def mean(self, plus: Tensor, minus: Tensor) -> float:
        """The expectation of a loss with these values at y = +1 and y = -1."""
        return float((self.weight * (self.positive * plus + (1 - self.positive) * minus)).sum())

    def clipped_square(self, u: Tensor) -> float:
        return self.mean((u - 1).square().clamp(max=1), (u + 1).square().clamp(max=1))

    def error(self, u: Tensor) -> float:
        return self.mean((u <= 0).double(), (u >= 0).double())

    def gibbs(self, u: Tensor, spread: Tensor) -> float:
        plus = torch.special.ndtr(-u / spread.clamp_min(1e-300))
        return self.mean(plus, 1 - plus)


def worlds(heavy: bool = False) -> list[World]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for task in range(2):
        sign = torch.where(torch.arange(24) % 2 == 0, 1.0, -1.0).double()
        x = torch.randn(24, 8, generator=generator, dtype=torch.float64) * 0.2
        x[:, 0] = sign
        x[:, 1 + task] += 0.5
        x = x / x.norm(dim=1, keepdim=True)
        weight = torch.rand(24, generator=generator, dtype=torch.float64) + 0.2
        positive = torch.where(sign > 0, 0.95, 0.05).double()
        if task == 1:  # partly at odds with the first, so that something is forgotten
            positive = torch.where(x[:, 2] > 0.3, 0.9, positive)
        if heavy:  # lengths with a tail of exponent 1: the longer, the rarer and the noisier
            length = 1 / (1 - torch.rand(24, generator=generator, dtype=torch.float64)).clamp_min(1e-3)
            x, weight = x * length[:, None], weight / length
            positive = torch.where(length > 4, 0.5, positive)
        found.append(World(x, weight / weight.sum(), positive))
    return found


def linear(x, z):
    return x @ z.T


def spread(x: Tensor, sample: Tensor, memory: Tensor | None, details: dict[str, float]) -> Tensor:
    """The posterior's standard deviation at x, with explicit features."""
    projector = torch.eye(x.shape[1], dtype=torch.float64)
    if memory is not None:
        _, lengths, directions = torch.linalg.svd(memory, full_matrices=False)
        basis = directions[lengths > 1e-6 * lengths[0]]
        projector = projector - basis.T @ basis
    seen, own = sample @ projector, x @ projector
    precision = torch.eye(x.shape[1], dtype=torch.float64) + seen.T @ seen / details["noise"]
    return (details["scale"] * (own * torch.linalg.solve(precision, own.T).T).sum(1).clamp_min(0)).sqrt()


def count_violations(tasks: list[World], samples: int, rule: str, ridge: float, repeated: bool = False):
    """How often each form fails, over independent draws (or one sample that is learnt twice)."""
    generator = torch.Generator().manual_seed(1)
    wrong: dict[str, int] = {}
    total: dict[str, float] = {}
    for number in range(DRAWS):
        drawn = [world.draw(samples, generator) for world in tasks]
        if repeated:
            drawn[1] = drawn[0]
        solution = solve_stream(linear, drawn, rule=rule, ridge=ridge)
        failed: set[str] = set()
        for task in (1 + number % len(tasks),):  # one task per draw, in turn
            world = tasks[0] if repeated else tasks[task - 1]
            u = solution.predict(world.x)
            memory = drawn[0][0] if rule == "ogd" and task == 2 else None
            truths = {"sound": world.clipped_square(u)}
            bounds = {"sound": generalisation_bound(solution, task=task, settings=KNOWN)}
            largest = float(world.x.square().sum(1).max())
            bounded = BoundSettings(unit_radius=0.25, independent=True, kernel_bound=largest)
            bounds["bounded kernel"] = generalisation_bound(solution, task=task, settings=bounded)
            truths["bounded kernel"] = truths["sound"]
            priors = ["initialisation"]
            if not repeated:
                bounds["one-ball"] = generalisation_bound(
                    solution, task=task, form="one-ball", settings=KNOWN
                )
                truths["one-ball"] = truths["sound"]
                held = world.draw(20, generator)
                bounds["hold-out"] = generalisation_bound(
                    solution, task=task, form="hold-out", held_out=held, settings=KNOWN
                )
                truths["hold-out"] = world.error(u)
                priors = ["other-samples" if samples == 40 and task == 1 else "earlier-tasks"]
            for prior in priors:
                settings = BoundSettings(independent=True, prior=prior)
                bounds[prior] = generalisation_bound(solution, task=task, form="pac-bayes", settings=settings)
                kept = None if prior == "initialisation" else memory
                truths[prior] = world.gibbs(
                    u, spread(world.x, drawn[task - 1][0], kept, bounds[prior].details)
                )
            for name, bound in bounds.items():
                total[name] = total.get(name, 0.0) + bound.value / DRAWS
                if truths[name] > bound.value:
                    failed.add(name)
        for name in failed:
            wrong[name] = wrong.get(name, 0) + 1
    return wrong, total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heavy", "samples", "rule"), [(False, 40, "ogd"), (True, 30, "sgd"), (False, 3, "ogd")]
)
def test_independent_tasks(heavy, samples, rule):
    wrong, mean = count_violations(worlds(heavy), samples, rule, ridge=0.5 * samples)
    assert all(count <= ALLOWED for count in wrong.values()), wrong
    assert mean["one-ball"] < mean["sound"]
    if samples == 40:
        assert (
            mean["earlier-tasks"] + mean["other-samples"] < 0.6
        )  # it says something of forty samples already
        assert mean["hold-out"] < 0.5


@pytest.mark.slow
def test_one_sample_learnt_twice():
    """Forms that need no independence between tasks, where there is none at all."""
    wrong, _ = count_violations(worlds(), 25, "sgd", ridge=1.0, repeated=True)
    assert set(wrong) <= {"sound", "bounded kernel", "initialisation"}
    assert all(count <= ALLOWED for count in wrong.values()), wrong


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_larger_samples_are_not_vacuous(rule):
    tasks, generator = worlds(), torch.Generator().manual_seed(1)
    above, failed, total = 0, 0, 0.0
    for _ in range(10):
        drawn = [world.draw(400, generator) for world in tasks]
        solution = solve_stream(linear, drawn, rule=rule, ridge=70.0)
        for task, world in enumerate(tasks, start=1):
            u = solution.predict(world.x)
            found = certify(
                solution,
                task=task,
                held_out=world.draw(100, generator),
                settings=BoundSettings(unit_radius=0.25, independent=True),
            )
            failed += world.error(u) > found.deterministic.deterministic
            sound = generalisation_bound(solution, task=task, settings=KNOWN)
            assert world.clipped_square(u) <= sound.value
            total += sound.value / 20
            above += world.clipped_square(u) > sound.terms["empirical"]
    assert failed <= 3  # each may fail with probability 0.05
    assert total < 1  # the loss is at most 1: this says something
    assert above > 5  # the empirical term alone would not have been a bound


def test_several_outputs():
    """One-hot targets: the vector form, with 2 sqrt(2) rho and the trace over all outputs."""
    tasks, generator = worlds(), torch.Generator().manual_seed(2)
    for _ in range(10):
        samples = []
        for world in tasks:
            x, y = world.draw(300, generator)
            samples.append((x, torch.stack([(y > 0).double(), (y < 0).double()], 1)))
        solution = solve_stream(linear, samples, rule="ogd", ridge=50.0)
        for task, world in enumerate(tasks, start=1):
            u = solution.predict(world.x)
            one, other = torch.eye(2, dtype=torch.float64)
            risk = world.mean(*((u - y).square().sum(1).clamp(max=1) for y in (one, other)))
            for form in ("sound", "one-ball"):
                bound = generalisation_bound(solution, task=task, form=form, settings=KNOWN)
                assert risk <= bound.value
            wrong = world.mean((u[:, 0] <= u[:, 1]).double(), (u[:, 1] <= u[:, 0]).double())
            assert wrong <= generalisation_bound(solution, task=task, loss="ramp", settings=KNOWN).value
