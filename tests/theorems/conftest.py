"""A linearised network with explicit features: the slow, obvious form of everything the theory computes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from orthocl.theory import solve_stream


def span_projector(rows: Tensor) -> Tensor:
    """I - Q Q^T off the span of the rows, by an SVD."""
    if len(rows) == 0:
        return torch.eye(rows.shape[1], dtype=torch.float64)
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    basis = right[values > 1e-9 * values[0]]
    return torch.eye(rows.shape[1], dtype=torch.float64) - basis.T @ basis


@dataclass
class FeatureForm:
    """Continual learning in weight space: phi(x) explicit, dense projectors, plain linear algebra."""

    features: list[Tensor]
    targets: list[Tensor]
    initial: list[Tensor]
    rule: str
    ridge: float
    memory: list[Tensor] | None = None
    weights: list[Tensor] = field(default_factory=list)
    projectors: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.features[0].shape[1]
        self.weights = [torch.zeros(size, dtype=torch.float64)]
        remembered = torch.zeros(0, size, dtype=torch.float64)
        for task, (phi, y) in enumerate(zip(self.features, self.targets, strict=True)):
            projector = span_projector(remembered if self.rule == "ogd" else remembered[:0])
            self.projectors.append(projector)
            residual = y - self.initial[task] - phi @ self.weights[-1]
            z = phi @ projector
            if self.ridge > 0:
                matrix = z @ z.T + self.ridge * torch.eye(len(z), dtype=torch.float64)
                step = z.T @ torch.linalg.solve(matrix, residual)
            else:
                step = torch.linalg.pinv(z, rtol=1e-9) @ residual
            self.weights.append(self.weights[-1] + step)
            kept = slice(None) if self.memory is None else self.memory[task]
            remembered = torch.cat([remembered, phi[kept]])

    def predict(self, phi: Tensor, initial: Tensor, after: int) -> Tensor:
        return initial + phi @ self.weights[after]


@dataclass
class Problem:
    """Four tasks of a linearised network of 385 weights, labels +-1, and a function that is not zero at first."""

    model: nn.Module
    tasks: list[tuple[Tensor, Tensor]]
    probes: Tensor
    ridge: float = 0.05

    def phi(self, x: Tensor) -> Tensor:
        weights = {name: value.detach() for name, value in self.model.named_parameters()}

        def output(weights: dict[str, Tensor], one: Tensor) -> Tensor:
            return functional_call(self.model, weights, (one[None],)).squeeze()

        rows = vmap(jacrev(output), (None, 0))(weights, x)
        return torch.cat([rows[name].flatten(1) for name in weights], 1)

    def f0(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.model(x).flatten()

    def kernel(self, x: Tensor, z: Tensor) -> Tensor:
        return self.phi(x) @ self.phi(z).T

    def solve(self, **settings):
        settings = {"ridge": self.ridge, "initial": lambda points: self.f0(points.inputs), **settings}
        return solve_stream(self.kernel, self.tasks, **settings)

    def reference(
        self, rule: str, ridge: float | None = None, memory: list[Tensor] | None = None
    ) -> FeatureForm:
        return FeatureForm(
            [self.phi(x) for x, _ in self.tasks],
            [y for _, y in self.tasks],
            [self.f0(x) for x, _ in self.tasks],
            rule,
            self.ridge if ridge is None else ridge,
            memory,
        )


@pytest.fixture(scope="session")
def problem() -> Problem:
    generator = torch.Generator().manual_seed(7)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = nn.Sequential(
            nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
        ).double()
    assert sum(p.numel() for p in model.parameters()) == 385
    tasks = []
    for count in (12, 9, 15, 10):
        x = torch.randn(count, 5, generator=generator, dtype=torch.float64)
        y = (torch.rand(count, generator=generator) < 0.5).double() * 2 - 1
        tasks.append((x, y))
    return Problem(model, tasks, torch.randn(20, 5, generator=generator, dtype=torch.float64))


@pytest.fixture
def feature_form():
    return FeatureForm


@pytest.fixture
def off_span():
    return span_projector
